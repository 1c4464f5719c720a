from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phalanx.records.events import AnyEvent, Clock, HostSample, ProcessSample
from phalanx.records.log import read_logs
from phalanx.records.total_use import cpu_by_process, total_use
from phalanx.records.usage import host_uses, process_uses, training_windows

MIB = 1 << 20


def sample(mono_s: float, cpu_s: float, moment: str = "", **fields: Any) -> ProcessSample:
    values = {
        "pid": 7,
        "host": "here",
        "cpu_system_s": cpu_s / 4,
        "memory_bytes": 100 * MIB,
        "memory_peak_bytes": 100 * MIB,
        "threads": 1,
        **fields,
    }
    return ProcessSample(mono_s=mono_s, cpu_user_s=cpu_s, moment=moment, **values)


def around(mono_s: float, energy_j: float | None, **fields: Any) -> HostSample:
    values = {
        "host": "here",
        "cpu_user_s": mono_s,
        "cpu_system_s": 0.0,
        "cpu_idle_s": 0.0,
        "core_busy_s": [mono_s, 0.0],
        "load_1min": 1.0,
        "memory_used_bytes": 500 * MIB,
        "memory_total_bytes": 1000 * MIB,
        "received_bytes": {"eth0": 0},
        "sent_bytes": {"eth0": 0},
        "energy_source": "rapl" if energy_j is not None else "",
        **fields,
    }
    return HostSample(mono_s=mono_s, energy_j=energy_j, **values)


def write(folder: Path, logs: dict[str, list[AnyEvent]]) -> Path:
    for process, events in logs.items():
        lines = [msgspec.json.encode(event) + b"\n" for event in events]
        (folder / f"{process}.jsonl").write_bytes(b"".join(lines))
    return folder


def made_up(seed: int) -> dict[str, list[AnyEvent]]:
    """Several machines, attempts and incarnations, with clocks that are off and drift."""
    draw = random.Random(seed)
    logs: dict[str, list[AnyEvent]] = {}
    for process in ("worker-0", "worker-1", "server-0"):
        events: list[AnyEvent] = []
        for attempt in range(1, draw.randint(2, 4)):
            offset_s = draw.uniform(-50, 50)
            time_s, cpu_s = draw.uniform(100, 110), 0.0
            for life in range(draw.randint(1, 2)):
                is_worker, num = process.startswith("worker"), draw.randint(2, 12)
                begin, end = draw.randint(0, num // 2), draw.randint(num // 2, num)
                for number in range(num):
                    time_s += draw.uniform(0.5, 1.5)
                    cpu_s = cpu_s + draw.uniform(0, 1) if number else 0.0
                    if number % 4 == 0:
                        reading = offset_s + draw.uniform(0, 0.01)
                        events.append(
                            Clock(mono_s=time_s, offset_s=reading, error_s=0.1, attempt=attempt)
                        )
                    moment = "begin" if number == begin else "end" if number == end else ""
                    events.append(
                        sample(
                            time_s,
                            cpu_s,
                            moment if is_worker else "",
                            pid=7 + life,
                            memory_bytes=draw.randint(50, 150) * MIB,
                            memory_peak_bytes=(150 + number // 5) * MIB,
                            attempt=attempt,
                        )
                    )
                    events.append(
                        around(time_s, 10 * time_s, host=process, attempt=attempt)
                        if process != "server-0"
                        else around(time_s, None, host=process, attempt=attempt)
                    )
        logs[process] = events
    return logs


@pytest.mark.parametrize("seed", range(30))
def test_the_sums_are_those_of_the_detailed_figures(tmp_path: Path, seed: int) -> None:
    folder = write(tmp_path, made_up(seed))
    logs = read_logs(folder, Clock, ProcessSample, HostSample)
    windows = training_windows(logs)
    processes, hosts = process_uses(logs, windows), host_uses(logs, windows)
    found = total_use(folder)
    cpu_s = {name: use.cpu_s for name, use in processes.items()}
    assert cpu_by_process(folder) == pytest.approx(cpu_s)
    assert found.cpu_s == pytest.approx(sum(cpu_s.values()))
    assert found.memory_peak_bytes == max(use.memory_peak_bytes for use in processes.values())
    joules = [use.energy_j for use in hosts.values() if use.energy_j is not None]
    assert found.energy_j == pytest.approx(sum(joules))
    assert found.energy_source == "rapl"


def test_without_samples_nothing_is_claimed(tmp_path: Path) -> None:
    found = total_use(write(tmp_path, {"worker-0": [Clock(offset_s=0.0, error_s=1.0)]}))
    assert (found.cpu_s, found.memory_peak_bytes, found.energy_j) == (None, None, None)
    assert found.energy_source == ""


def test_memory_does_not_grow_with_the_length_of_the_run(tmp_path: Path) -> None:
    def peak_bytes(num_samples: int) -> int:
        folder = tmp_path / str(num_samples)
        folder.mkdir()
        events: list[AnyEvent] = [sample(0.0, 0.0, "begin")]
        for second in range(1, num_samples):
            events += [sample(float(second), 0.5 * second), around(float(second), 9.0 * second)]
        write(folder, {"worker-0": events})
        del events
        tracemalloc.start()
        try:
            assert total_use(folder).cpu_s == pytest.approx(0.625 * (num_samples - 1))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(5000) < 1.2 * peak_bytes(500)
