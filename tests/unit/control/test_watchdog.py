"""A run in which nothing moves ends, and its last word names what it waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from phalanx.control.coordinator import Awaited
from phalanx.control.switch.states import Ending
from phalanx.control.watchdog import ProgressWatchdog
from phalanx.errors import ExitCode
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import Heartbeat, Progress
from phalanx.wire.parameter_server import Paused, WorkDone
from support.company import Company, serving_job
from unit.control.switch.test_switch_play import APART, COLOCATED, SwitchCompany

LIMIT_S = 60.0


def wait(
    watchdog: ProgressWatchdog, beats: Sequence[Progress] = (Progress(),), *, times: int = 130
) -> None:
    """Half a second passes with each heartbeat."""
    for number in range(times):
        watchdog.age(0.5, is_starting=False)
        watchdog.take("worker-0", Heartbeat(beats[number % len(beats)]))


def test_heartbeats_alone_are_no_movement() -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    wait(watchdog, times=110)
    assert not watchdog.is_stuck
    wait(watchdog, times=20)
    assert watchdog.is_stuck


@pytest.mark.parametrize(
    "beats",
    [
        [Progress(step=1), Progress(step=2)],
        [Progress(compute_s=1.0), Progress(compute_s=2.0)],
        [Progress(activity=f"reading file {number}") for number in range(130)],
    ],
)
def test_a_counter_or_an_activity_is_movement(beats: list[Progress]) -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    wait(watchdog, beats)
    assert not watchdog.is_stuck


def test_one_process_that_computes_is_slow_and_not_stuck() -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    wait(watchdog, [Progress(cpu_s=0.4 * number) for number in range(130)])
    assert not watchdog.is_stuck


def test_a_process_that_runs_in_circles_ends_the_run_after_hours() -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    wait(watchdog, [Progress(cpu_s=0.5 * number) for number in range(4000)], times=4000)
    assert not watchdog.is_stuck
    wait(watchdog, [Progress(cpu_s=2000 + 0.5 * number) for number in range(500)], times=500)
    assert watchdog.is_stuck
    failure = watchdog.failure([], {"worker-0": "training"})
    assert "have only computed for 2160 s, no step done (deadlines.progress_s)" in failure.cause
    watchdog.take("worker-0", Paused(b""))
    assert not watchdog.is_stuck


def test_processor_time_of_heartbeats_is_no_movement() -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    wait(watchdog, [Progress(cpu_s=0.01 * number) for number in range(130)])
    assert watchdog.is_stuck


def test_a_message_is_movement_and_so_is_a_process_that_starts() -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    wait(watchdog, times=110)
    watchdog.take("worker-0", Paused(b""))
    wait(watchdog, times=110)
    assert not watchdog.is_stuck
    watchdog.age(LIMIT_S, is_starting=True)
    assert not watchdog.is_stuck


def test_pushes_without_samples_are_no_movement() -> None:
    watchdog = ProgressWatchdog(LIMIT_S)
    for number in range(130):
        # What a worker does whose rounds lack the gradients of another.
        activity = ("training", "waiting for work")[number % 2]
        wait(watchdog, [Progress(activity=activity, exchange_s=0.1 * number)], times=1)
        watchdog.take("worker-0", WorkDone((), 1))
    assert watchdog.is_stuck


def test_the_last_word_names_processes_what_they_owe_and_the_setting() -> None:
    activities = {"worker-1": "waiting for work", "server-0": "serving"}
    awaited = [Awaited("worker-1", "to complete 3 batches")]
    failure = ProgressWatchdog(LIMIT_S).failure(awaited, activities)
    assert failure.process == "worker-1"
    assert failure.exit_code == ExitCode.DEADLINE
    assert failure.cause == (
        "nothing has moved for 60 s (deadlines.progress_s): the run waits for worker-1 to complete "
        "3 batches (it says: waiting for work)"
    )
    unknown = ProgressWatchdog(LIMIT_S).failure((), activities)
    assert "worker-1 to go on" in unknown.cause
    assert ProgressWatchdog(LIMIT_S).failure([Awaited("worker-9", "")], activities).process


def hold(company: Company, name: str, after: int) -> bool:
    """All play, but one stops after so many scenes; True: the others wait for it in the end."""
    num_idle, before = 0, None
    for number in range(5000):
        if company.is_finished:
            return False
        now = (company.coordinator.state, company.used.total())
        # Rounds that lack a worker are filled up again and again.
        num_idle = num_idle + 1 if now == before else 0
        before = now
        names = [one for one in company.busy() if one != name or number < after]
        if names:
            company.scene(names[number % len(names)])
        elif not company.pass_time() or company.busy() == [name] or num_idle > 100:
            return True
    raise AssertionError("the play does not end")


JOBS = {
    "async": serving_job(strategy={"consistency": "async"}),
    "bsp": serving_job(strategy={"consistency": "bsp", "servers": 2}),
    "colocated": serving_job(strategy={"consistency": "ssp", "servers": "colocated"}),
}


@pytest.mark.parametrize("kind", JOBS)
def test_whoever_stops_at_whatever_moment_is_the_one_that_is_named(kind: str) -> None:
    states = set()
    for name in [one.name for one in Company(JOBS[kind]).coordinator.processes()]:
        for after in range(120):
            company = Company(JOBS[kind]).start()
            if not hold(company, name, after):
                break
            states.add(type(company.coordinator.state).__name__)
            awaited = company.coordinator.awaited()
            assert name in [one.process for one in awaited], (name, after, awaited)
    assert states >= {"Training", "Pausing", "Flushing", "AtGate", "Finishing"}


@pytest.mark.parametrize("strategy", [COLOCATED, APART], ids=["colocated", "apart"])
def test_whoever_stops_in_a_switch_is_named(strategy: dict[str, object]) -> None:
    phases = [
        {"strategy": "allreduce"},
        {"strategy": strategy, "epoch": 0.4},
        {"strategy": "allreduce", "epoch": 1.2},
    ]
    fields = {"data": "digits", "batch": {"global": 4}, "workers": 2, "epochs": 2}
    job = job_from_mapping(fields | {"strategy": {"name": "switch", "phases": phases}})
    states = set()
    for name in SwitchCompany(job).names:
        for after in range(0, 160, 3):
            company = SwitchCompany(job)
            company.start()
            if not hold(company, name, after):
                break
            states.add(type(company.switcher.state).__name__)  # type: ignore[attr-defined]
            awaited = company.switcher.awaited()
            # In lockstep and at the end the controller names those that are not done.
            unknown = not awaited and name not in company.done
            assert unknown or name in [one.process for one in awaited], (name, after, awaited)
            assert awaited or company.steps or isinstance(company.coordinator.state, Ending)
    assert states >= {"InPhase", "Committed", "Ending"}
