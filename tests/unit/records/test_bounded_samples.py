"""Long runs are shown in little memory: sums and peaks are exact, whatever is left out."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from phalanx.records.bounded_samples import MOST_SAMPLES, read_samples
from phalanx.records.events import AnyEvent, Clock, HostSample, ProcessSample
from phalanx.records.log import read_logs
from phalanx.records.usage import host_uses, process_uses, training_windows
from unit.records.test_total_use import MIB, around, made_up, sample, write


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_all_samples(tmp_path: Path, seed: int) -> None:
    folder = write(tmp_path, made_up(seed))
    every, few = read_logs(folder, Clock, ProcessSample, HostSample), read_samples(folder, most=6)
    assert sum(map(len, few.values())) < sum(map(len, every.values()))
    windows = training_windows(every)
    assert training_windows(few).keys() == windows.keys()
    for attempt, window in training_windows(few).items():
        # Fewer readings of the clock, each of them off by up to a hundredth of a second.
        assert window.begin_s == pytest.approx(windows[attempt].begin_s, abs=0.02)
        assert window.end_s == pytest.approx(windows[attempt].end_s, abs=0.02)
    for name, use in host_uses(every, windows).items():
        found = host_uses(few, windows)[name]
        near = None if use.energy_j is None else pytest.approx(use.energy_j, rel=0.01)
        assert found.energy_j == near, "up to what the clock says of the window"
        assert found.duration_s == pytest.approx(use.duration_s, rel=0.05, abs=0.2)


def test_a_long_run_is_shown_in_little_memory(tmp_path: Path) -> None:
    def peak_bytes(num_samples: int) -> int:
        folder = tmp_path / str(num_samples)
        folder.mkdir()
        events: list[AnyEvent] = [sample(0.0, 0.0), sample(0.5, 0.0, "begin")]
        for second in range(1, num_samples):
            memory = 900 if second == num_samples // 3 else 100
            events += [
                sample(float(second), 0.5 * second, memory_bytes=memory * MIB),
                around(float(second), 9.0 * second, memory_used_bytes=memory * MIB),
                # Every gate marks its end; the first begin and the last end bound the training.
                sample(second + 0.5, 0.5 * second, "end" if second % 2 else "begin"),
            ]
        write(folder, {"worker-0": events})
        del events
        tracemalloc.start()
        try:
            logs = read_samples(folder)
            uses = process_uses(logs)["worker-0"], host_uses(logs)["here"]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert max(map(len, logs.values())) <= 2 * (MOST_SAMPLES + 1)
        assert uses[0].cpu_s == pytest.approx(0.625 * (num_samples - 1))
        assert uses[0].memory_peak_bytes == uses[1].memory_peak_bytes == 900 * MIB
        return peak

    assert peak_bytes(4001) < 1.3 * peak_bytes(1001)
