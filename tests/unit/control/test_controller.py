"""The controller alone: no process is started, what becomes of processes is written down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.control.controller import Controller, RunFailed
from phalanx.control.process_table import RunRequest
from phalanx.errors import ExitCode, Interrupted, LaunchError, Terminated
from phalanx.launch.base import LaunchRequest
from phalanx.records.events import Decision, Failure, Warned
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from support.fake_launcher import FakeLauncher, Script

STOP_S = 7.5


class Run:
    """A run whose processes are played by a script."""

    def __init__(self, folder: Path, script: Script, **job: object) -> None:
        values = {"workers": 2, "deadlines": {"stop_s": STOP_S}, **job}
        self.job = JobSpec.model_validate(values)
        self.run = RunDir.create(folder / "runs", "job")
        self.launcher = FakeLauncher(LaunchRequest(self.job, folder, folder), script)
        self.controller = Controller(
            RunRequest(self.job, self.run, folder, folder),
            launcher=self.launcher,
            allocation=self.launcher.allocate(self.run),
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
    with pytest.raises(kind, match="continue with `phalanx train --resume`"):
        made.controller.run()
    assert made.launcher.groups[0].graces == [STOP_S]
    assert made.run.read_status().state == "interrupted"


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
