from __future__ import annotations

import pytest

from phalanx.records.attempts import RunClock, split_attempts
from phalanx.records.events import AnyEvent, Clock, Stall, Started, Step
from phalanx.records.step_phases import Comparison, StepPhases
from support.phases import worker_phases


def step(number: int, exchange_s: float, wait_s: float | None = None) -> Step:
    return Step(
        epoch=0,
        step=number,
        num_samples=1,
        loss_sum=0.0,
        num_correct=0,
        lr=0.1,
        input_s=1.0,
        forward_s=2.0,
        backward_s=3.0,
        exchange_s=exchange_s,
        apply_s=0.5,
        overlapped_s=0.25,
        wait_s=wait_s,
    )


def started(attempt: int) -> Started:
    return Started(
        rank=0,
        role="worker",
        pid=1,
        host="here",
        attempt=attempt,
        threads=1,
        cpus=[],
        precision="fp32",
        precision_reason="",
        startup_s=1.0,
    )


def test_in_a_group_the_last_to_arrive_waits_for_nobody() -> None:
    settle = [Stall(epoch=0, what="settle", duration_s=s) for s in (0.7, 0.1)]
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [step(1, 4.0), step(2, 1.0), settle[0]],
        "worker-1": [step(1, 1.5), step(2, 3.0), settle[1]],
    }
    phases = worker_phases(logs)
    assert phases["worker-0"].wait_s == pytest.approx(2.5 + 0.0 + 0.6)
    assert phases["worker-0"].communication_s == pytest.approx(1.5 + 1.0 + 0.1)
    assert phases["worker-1"].wait_s == pytest.approx(2.0)
    assert phases["worker-1"].communication_s == pytest.approx(2.6)
    assert phases["worker-0"].overlapped_s == 0.5
    assert phases["worker-0"].total_s == pytest.approx(2 * 6.5 + 5.0 + 0.7)


def test_what_servers_said_is_not_compared_with_anybody() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [step(1, 4.0, wait_s=1.0)],
        "worker-1": [
            step(1, 9.0, wait_s=0.0),
            Stall(epoch=0, what="work", duration_s=2.0, wait_s=2.0),
        ],
    }
    phases = worker_phases(logs)
    assert (phases["worker-0"].communication_s, phases["worker-0"].wait_s) == (3.0, 1.0)
    assert (phases["worker-1"].communication_s, phases["worker-1"].wait_s) == (9.0, 2.0)


def test_a_step_that_was_done_again_after_a_resume_is_another_one() -> None:
    logs: dict[str, list[AnyEvent]] = {
        "worker-0": [started(1), step(1, 5.0), started(2), step(1, 1.0)],
        "worker-1": [started(1), step(1, 2.0), started(2), step(1, 1.0)],
    }
    assert worker_phases(logs)["worker-0"].wait_s == 3.0
    assert [len(part) for part in split_attempts(logs["worker-0"]).values()] == [2, 2]


def test_a_step_alone_has_no_waiting() -> None:
    assert Comparison([step(1, 3.0)]).phases(step(1, 3.0)) == StepPhases(
        input_s=1.0,
        forward_s=2.0,
        backward_s=3.0,
        communication_s=3.0,
        apply_s=0.5,
        overlapped_s=0.25,
    )


def test_between_two_readings_a_clock_drifts_evenly() -> None:
    clock = RunClock(
        [
            Clock(mono_s=0.0, offset_s=10.0, error_s=1e-4),
            Clock(mono_s=50.0, offset_s=77.0, error_s=1.0),  # far worse than the others
            Clock(mono_s=100.0, offset_s=12.0, error_s=2e-4),
        ]
    )
    assert clock.at(-5.0) == 5.0
    assert clock.at(50.0) == pytest.approx(61.0)
    assert clock.at(200.0) == 212.0
    assert RunClock([]).at(3.0) == 3.0
