from __future__ import annotations

from typing import Any

import pytest

from phalanx.records.events import AnyEvent, Clock, HostSample, ProcessSample
from phalanx.records.tracks import TimeWindow
from phalanx.records.usage import host_uses, process_uses, training_windows

MIB = 1 << 20


def sample(mono_s: float, cpu_s: float, moment: str = "", **fields: Any) -> ProcessSample:
    values = {
        "pid": 7,
        "host": "here",
        "cpu_system_s": 0.0,
        "memory_bytes": 100 * MIB,
        "memory_peak_bytes": 100 * MIB,
        "threads": 1,
        **fields,
    }
    return ProcessSample(mono_s=mono_s, cpu_user_s=cpu_s, moment=moment, **values)


def around(mono_s: float, busy_s: float, phase: str = "run", **fields: Any) -> HostSample:
    values = {
        "host": "here",
        "cpu_system_s": 0.0,
        "cpu_idle_s": 0.0,
        "core_busy_s": [busy_s, 0.0],
        "load_1min": 1.0,
        "memory_used_bytes": 500 * MIB,
        "memory_total_bytes": 1000 * MIB,
        "received_bytes": {"eth0": 0},
        "sent_bytes": {"eth0": 0},
        **fields,
    }
    return HostSample(mono_s=mono_s, cpu_user_s=busy_s, phase=phase, **values)


def test_only_training_counts_and_totals_are_cut_at_its_edges() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [
            sample(10.0, 50.0),
            sample(20.0, 55.0, "begin"),
            sample(30.0, 60.0, "end"),
            sample(31.0, 60.1, "begin"),
            sample(40.0, 65.0, "end"),
            sample(50.0, 99.0),
        ],
        # Never marks anything; its samples lie beside the edges.
        "server-0": [
            sample(15.0, 0.0, pid=8),
            sample(25.0, 10.0, pid=8),
            sample(45.0, 30.0, pid=8),
        ],
    }
    assert training_windows(logs) == {1: TimeWindow(20.0, 40.0)}
    uses = process_uses(logs)
    worker, server = uses["worker-0"], uses["server-0"]
    assert (worker.duration_s, worker.cpu_user_s, worker.cpu_cores) == (20.0, 10.0, 0.5)
    # Half of the first ten seconds' worth, three quarters of the next twenty.
    assert server.cpu_user_s == pytest.approx(5.0 + 15.0)
    assert server.cpu_cores == pytest.approx(1.0)
    assert [point.t_s for point in server.series] == [5.0, 20.0]


def test_without_samples_nothing_is_claimed() -> None:
    logs: dict[str, list[AnyEvent]] = {"worker-0": [Clock(offset_s=0.0, error_s=1.0)]}
    assert training_windows(logs) == {}
    assert process_uses(logs) == {}
    assert host_uses(logs) == {}


def test_a_lost_process_counts_up_to_its_last_sample_and_its_successor_from_its_first() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [sample(0.0, 0.0, "begin"), sample(100.0, 50.0, "end")],
        "worker-1": [
            sample(0.0, 5.0, "begin", pid=8),
            sample(10.0, 15.0, pid=8),
            sample(20.0, 1.0, pid=9),
            sample(30.0, 2.0, "begin", pid=9),
            sample(100.0, 72.0, "end", pid=9),
        ],
    }
    assert training_windows(logs) == {1: TimeWindow(0.0, 100.0)}
    lost = process_uses(logs)["worker-1"]
    assert lost.cpu_user_s == pytest.approx(10.0 + 71.0)
    assert lost.duration_s == pytest.approx(90.0)
    assert process_uses({"worker-1": logs["worker-1"][:2]})["worker-1"].cpu_user_s == 10.0


def test_attempts_are_added_and_their_clocks_never_compared() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [
            sample(1000.0, 10.0, "begin"),
            sample(1010.0, 20.0, "end"),
            # After a reboot the clock begins anew.
            sample(5.0, 1.0, "begin", pid=3, attempt=2),
            sample(25.0, 5.0, "end", pid=3, attempt=2),
        ]
    }
    use = process_uses(logs)["worker-0"]
    assert (use.duration_s, use.cpu_user_s) == (30.0, 14.0)
    assert [point.t_s for point in use.series] == [10.0, 30.0]


def test_machines_are_brought_to_the_controllers_clock() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [
            Clock(mono_s=0.0, offset_s=1e-5, error_s=1e-4),
            sample(100.0, 0.0, "begin"),
            sample(110.0, 10.0, "end"),
        ],
        "server-0": [
            Clock(mono_s=5000.0, offset_s=-4900.0, error_s=1e-4),
            sample(4995.0, 0.0, pid=9, host="there"),
            sample(5015.0, 20.0, pid=9, host="there"),
        ],
    }
    # An offset within its own error is none.
    assert training_windows(logs) == {1: TimeWindow(100.0, 110.0)}
    assert process_uses(logs)["server-0"].cpu_user_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("peaks", "expected"), [((900, 900), 300), ((900, 950), 950)], ids=["before", "within"]
)
def test_a_peak_counts_if_it_was_reached_while_training(
    peaks: tuple[int, int], expected: int
) -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [
            sample(0.0, 0.0, "begin", memory_bytes=200, memory_peak_bytes=peaks[0]),
            sample(1.0, 0.0, "end", memory_bytes=300, memory_peak_bytes=peaks[1]),
        ]
    }
    assert process_uses(logs)["worker-0"].memory_peak_bytes == expected


def test_a_machines_idle_baseline_is_taken_off_on_request_and_never_below_zero() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [
            around(0.0, 0.0, "baseline", energy_j=0.0, energy_source="model"),
            around(
                10.0,
                1.0,
                "baseline",
                energy_j=400.0,
                energy_source="model",
                received_bytes={"eth0": 1000},
            ),
            sample(20.0, 0.0, "begin"),
            around(20.0, 2.0, energy_j=800.0, energy_source="model", received_bytes={"eth0": 5000}),
            sample(40.0, 0.0, "end"),
            around(
                40.0,
                22.0,
                energy_j=2800.0,
                energy_source="model",
                received_bytes={"eth0": 6000},
                sent_bytes={"eth0": 300, "new0": 7},
                memory_used_bytes=700 * MIB,
            ),
        ]
    }
    whole = host_uses(logs)["here"]
    assert (whole.cpu_user_s, whole.cpu_cores, whole.cpu_share) == (20.0, 1.0, 0.5)
    assert whole.core_shares == [1.0, 0.0]
    assert (whole.received_bytes, whole.sent_bytes) == ({"eth0": 1000}, {"eth0": 300})
    assert (whole.energy_j, whole.energy_source) == (2000.0, "model")
    assert (whole.memory_peak_bytes, whole.memory_total_bytes) == (700 * MIB, 1000 * MIB)
    assert whole.series[0].watts == 100.0
    above = host_uses(logs, subtract_baseline=True)["here"]
    assert above.baseline_subtracted
    assert above.cpu_user_s == pytest.approx(18.0)
    assert above.energy_j == pytest.approx(1200.0)
    assert above.received_bytes == {"eth0": 0}
    assert above.memory_peak_bytes == 200 * MIB
    assert not host_uses({"worker-0": logs["worker-0"][2:]}, subtract_baseline=True)[
        "here"
    ].baseline_subtracted
