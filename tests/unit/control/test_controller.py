"""The controller alone: no process is started, what becomes of processes is written down."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from phalanx.control.controller import Controller
from phalanx.control.process_table import RunRequest
from phalanx.control.progress import Observer, ProcessLoss
from phalanx.control.run_end import RunFailed
from phalanx.errors import (
    ExitCode,
    Interrupted,
    LaunchError,
    SpecError,
    StoreError,
    Terminated,
)
from phalanx.launch.allocation import LocalAllocation
from phalanx.launch.base import LaunchRequest
from phalanx.records.events import Decision, Failure, Warned
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.records.stop_request import is_stop_requested, request_stop
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.control import ControlServer
from phalanx.wire.messages import FromWorker
from phalanx.wire.split import PlacementReport
from support.fake_launcher import FakeLauncher, Script

STOP_S = 7.5


class CrowdedAllocation(LocalAllocation):
    """An allocation that has no second slot for processes of some roles."""

    full: Collection[str] = ()

    @override
    def move(self, role: str, rank: int, *, crowd: bool) -> bool:
        return role not in self.full


class Notebook:
    """An observer that writes down what it is told, and how many processes ran then."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running: list[int] = []
        self.made: Run | None = None

    def run_started(self, run_dir: Path, job: JobSpec) -> None: ...

    def progressed(self, progress: object) -> None: ...

    def epoch_done(self, report: object) -> None: ...

    def switched(self, switch: object) -> None: ...

    def placed(self, placed: object) -> None: ...

    def run_finished(self, summary: object) -> None: ...

    def process_lost(self, loss: ProcessLoss) -> None:
        self.lines.append(f"{loss.process}: {loss.cause}; {loss.remedy}")

    def noted(self, message: str) -> None:
        self.lines.append(message)
        if self.made is not None:
            group = self.made.launcher.groups[-1]
            self.running.append(sum(status.running for status in group.poll()))


class Run:
    """A run whose processes are played by a script."""

    def __init__(
        self,
        folder: Path,
        script: Script,
        observers: Sequence[Observer] = (),
        full: Collection[str] = (),
        **job: object,
    ) -> None:
        values = {"workers": 2, "deadlines": {"stop_s": STOP_S}, **job}
        self.job = JobSpec.model_validate(values)
        self.run = RunDir.create(folder / "runs", "job")
        self.launcher = FakeLauncher(LaunchRequest(self.job, folder, folder), script)
        allocation = CrowdedAllocation(
            self.job, run_dir=self.run.path, data_root=folder, cache_root=folder
        )
        allocation.full = full
        self.controller = Controller(
            RunRequest(self.job, self.run, folder, folder),
            launcher=self.launcher,
            allocation=allocation,
            observers=observers,
        )

    def events(self, kind: type[Decision | Failure | Warned]) -> list[object]:
        return list(read_events(self.run.events_path("controller"), kind))


@pytest.fixture
def run_with(tmp_path: Path) -> Callable[..., Run]:
    return lambda script, **job: Run(tmp_path, script, **job)


def test_a_process_that_fails_ends_the_run_with_its_last_lines(
    run_with: Callable[..., Run],
) -> None:
    log = "Traceback\nValueError: on purpose"
    made = run_with(Script(exits={"worker-1": (1,)}, logs={"worker-1": log}))
    with pytest.raises(RunFailed, match="worker-1") as caught:
        made.controller.run()
    assert caught.value.exit_code == ExitCode.WORKER_LOST
    assert caught.value.facts["detail"] == log
    [group] = made.launcher.groups
    assert group.graces == [STOP_S], "the others are asked first"
    assert not any(status.running for status in group.poll())
    status = made.run.read_status()
    assert (status.state, status.rank) == ("failed", 1)
    [failure] = made.events(Failure)
    assert isinstance(failure, Failure)
    assert failure.detail == log
    assert [one.what for one in made.events(Decision) if isinstance(one, Decision)] == [
        "stop all processes"
    ]


def test_a_start_that_is_refused_ends_the_run_before_it_begins(
    run_with: Callable[..., Run],
) -> None:
    made = run_with(Script(refused=("worker-1",)))
    with pytest.raises(LaunchError, match="cannot start worker-1") as caught:
        made.controller.run()
    assert caught.value.facts["run_dir"] == str(made.run.path)
    [group] = made.launcher.groups
    assert group.starts == ["worker-0"]
    assert group.graces == [0.0]
    assert made.run.read_status().state == "failed"


def test_a_lost_machine_is_named_as_the_cause(run_with: Callable[..., Run]) -> None:
    made = run_with(Script())

    def lose(spec: WorkerSpec) -> None:
        if spec.process == "worker-1":
            made.launcher.groups[-1].lose("worker-1", "its cable was pulled")

    made.launcher.script.on_start = lose
    with pytest.raises(RunFailed, match=r"worker-1 is lost.*its cable was pulled"):
        made.controller.run()


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, Interrupted), (signal.SIGTERM, Terminated)]
)
def test_a_signal_ends_all_processes_in_order(
    run_with: Callable[..., Run], number: int, kind: type[Exception]
) -> None:
    script = Script(on_start=lambda spec: os.kill(os.getpid(), number) if spec.rank else None)
    made = run_with(script)
    command = f"continue with `phalanx train --resume {made.run.path}`"
    with pytest.raises(kind, match=re.escape(command)):
        made.controller.run()
    assert made.launcher.groups[0].graces == [STOP_S]
    assert made.run.read_status().state == "interrupted"


def test_a_request_ends_this_attempt_and_no_later_one(run_with: Callable[..., Run]) -> None:
    made = run_with(Script())
    with pytest.raises(SpecError, match="only a running one can be stopped"):
        request_stop(made.run)
    made.launcher.script.on_start = lambda spec: request_stop(made.run) if spec.rank else None
    with pytest.raises(Interrupted, match=r"stopped on request; continue with .phalanx train"):
        made.controller.run()
    assert made.launcher.groups[0].graces == [STOP_S]
    assert made.run.read_status().state == "interrupted"
    attempt = made.run.read_status().attempt
    assert is_stop_requested(made.run, attempt)
    assert not is_stop_requested(made.run, attempt + 1)


def test_which_processes_start_is_the_strategy_and_what_is_odd_is_a_warning(
    run_with: Callable[..., Run],
) -> None:
    servers = {"name": "parameter_server", "servers": 2}
    made = run_with(Script(refused=("evaluator-0",)), strategy=servers)
    made.launcher.notes = ("a: its clock is +3.0 s off",)
    with pytest.raises(LaunchError, match="cannot start evaluator-0"):
        made.controller.run()
    names = {"worker-0", "worker-1", "server-0", "server-1"}
    assert names == set(made.launcher.groups[0].processes)
    assert [one.message for one in made.events(Warned) if isinstance(one, Warned)] == [
        "a: its clock is +3.0 s off"
    ]


SERVED = {"name": "parameter_server", "servers": 1}


def interrupt_at(incarnation: int, *processes: str) -> Callable[[WorkerSpec], None]:
    """End the run as by Ctrl-C once the processes have been started so often."""
    left = set(processes)

    def on_start(spec: WorkerSpec) -> None:
        if spec.incarnation == incarnation:
            left.discard(spec.process)
            if not left:
                os.kill(os.getpid(), signal.SIGINT)

    return on_start


def test_a_lost_process_is_told_when_it_happens_with_what_becomes_of_it(
    run_with: Callable[..., Run],
) -> None:
    seen = Notebook()
    script = Script(exits={"worker-1": (-9,)}, on_start=interrupt_at(2, "worker-1"))
    made = run_with(script, observers=[seen], strategy=SERVED)
    with pytest.raises(Interrupted):
        made.controller.run()
    assert seen.lines[0] == (
        "worker-1: worker-1 was killed by SIGKILL; the system may have run out of memory; it "
        "starts again"
    )
    what = [one.what for one in made.events(Decision) if isinstance(one, Decision)]
    assert what == ["replace worker-1", "stop all processes"]


def test_a_worker_that_no_machine_has_room_for_is_left_out_and_its_rate_is_not_missed(
    run_with: Callable[..., Run],
) -> None:
    seen = Notebook()
    script = Script(exits={"worker-0": (-9,)})
    made = run_with(script, observers=[seen], full=("worker",), strategy=SERVED)
    found: list[float] = []

    def look(loss: ProcessLoss) -> None:
        Notebook.process_lost(seen, loss)
        # What the end of an epoch needs: its rate, and the state of who left.
        found.append(made.controller.learning_rate())
        found.append(made.controller.progress("worker-0").version)
        os.kill(os.getpid(), signal.SIGINT)

    seen.process_lost = look  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        made.controller.run()
    assert found == [0.0, 0]
    assert "goes on without it" in seen.lines[0]


def test_a_server_that_cannot_be_placed_again_ends_the_run_with_a_sentence(
    run_with: Callable[..., Run],
) -> None:
    script = Script(exits={"server-0": (-9,)}, logs={"server-0": "last words"})
    made = run_with(script, full=("server",), strategy=SERVED)
    with pytest.raises(RunFailed, match=r"server-0 was killed.*no machine has room") as caught:
        made.controller.run()
    assert caught.value.exit_code is ExitCode.WORKER_LOST
    assert caught.value.facts["detail"] == "last words"
    assert made.run.read_status().state == "failed"


def test_too_many_losses_within_the_window_end_the_run(run_with: Callable[..., Run]) -> None:
    made = run_with(
        Script(exits={"worker-0": (-9,), "worker-1": (-9,), "server-0": (-9,)}),
        strategy=SERVED | {"max_failures": 2},
    )
    with pytest.raises(
        RunFailed, match=r"loss number 3.*strategy\.max_failures allows 2"
    ) as caught:
        made.controller.run()
    assert caught.value.exit_code is ExitCode.WORKER_LOST


def test_the_cause_is_told_before_the_processes_are_ended(run_with: Callable[..., Run]) -> None:
    seen = Notebook()
    made = run_with(Script(exits={"worker-1": (1,)}), observers=[seen])
    seen.made = made
    with pytest.raises(RunFailed):
        made.controller.run()
    [line] = seen.lines
    assert line.startswith("ending: worker-1 ended with exit code 1")
    assert seen.running == [1], "worker-0 was not ended yet"


def test_an_error_that_nobody_foresaw_ends_the_run_as_failed_with_its_cause(
    run_with: Callable[..., Run],
) -> None:
    def stumble(spec: WorkerSpec) -> None:
        if spec.rank == 1:
            made.launcher.groups[-1].poll = lambda: {}["nobody"]  # type: ignore[method-assign]

    made = run_with(Script(on_start=stumble))
    with pytest.raises(RunFailed, match=r"a fault of Phalanx itself: KeyError: 'nobody'.*report"):
        made.controller.run()
    status = made.run.read_status()
    assert status.state == "failed"
    assert "KeyError" in str(status.cause)
    [failure] = made.events(Failure)
    assert isinstance(failure, Failure)
    assert "Traceback" in failure.detail
    assert made.launcher.groups[0].graces == [STOP_S]


def test_an_observer_that_breaks_is_left_out_and_the_run_goes_on(
    run_with: Callable[..., Run],
) -> None:
    class ClosedPipe(Notebook):
        def run_started(self, run_dir: Path, job: JobSpec) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    made = run_with(Script(exits={"worker-1": (1,)}), observers=[ClosedPipe()])
    with pytest.raises(RunFailed, match="worker-1"):
        made.controller.run()
    [warning] = made.events(Warned)
    assert isinstance(warning, Warned)
    assert "ClosedPipe does not show the run any more" in warning.message


def test_a_run_whose_directory_was_taken_over_ends(run_with: Callable[..., Run]) -> None:
    made = run_with(Script())

    def refuse() -> None:
        raise StoreError("taken over")

    made.controller._request = replace(made.controller._request, check_owner=refuse)
    with pytest.raises(StoreError, match="taken over"):
        made.controller.run()


def test_what_is_not_saved_is_said(run_with: Callable[..., Run]) -> None:
    made = run_with(Script(exits={"worker-1": (1,)}))
    with pytest.raises(RunFailed) as caught:
        made.controller.run()
    assert "no checkpoint has been written yet" in caught.value.facts["saved"]


def test_a_process_that_breaks_the_protocol_is_to_blame_and_not_the_controller(
    run_with: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[tuple[str, FromWorker]] = [("worker-1", PlacementReport(event=b"no json"))]

    def receive(server: ControlServer, wait_s: float) -> tuple[str, FromWorker] | None:
        return arrived.pop() if arrived else None

    monkeypatch.setattr(ControlServer, "receive", receive)
    made = run_with(Script())
    with pytest.raises(RunFailed, match=r"worker-1 failed: JSON is malformed") as caught:
        made.controller.run()
    assert caught.value.exit_code is ExitCode.WORKER_LOST


def test_a_suspended_controller_blames_itself(
    run_with: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Notebook()
    made = run_with(Script(), observers=[seen])
    clock = made.controller._clock
    tick = clock.tick

    def suspended() -> float:
        monkeypatch.setattr(clock, "tick", tick)
        monkeypatch.setattr(clock, "_last_s", clock._last_s - 20.0)
        made.launcher.groups[-1].lose("worker-1", "ssh ended with code 0")
        return tick()

    monkeypatch.setattr(clock, "tick", suspended)
    with pytest.raises(RunFailed, match=r"worker-1 is lost.*the controller itself had not run for"):
        made.controller.run()
    assert seen.lines[0].startswith("the controller did not run for 20.")
