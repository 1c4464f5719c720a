"""Scripted processes of `backend: tensorflow`: who is started, replaced, missed, and followed."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.control.backend_coordinator import BackendCoordinator
from phalanx.control.coordinator import Identity
from phalanx.control.failure_policy import ProcessFacts, ReportedError
from phalanx.errors import ExitCode
from phalanx.records.events import Epoch, Event, Switched
from phalanx.records.position import Position
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import (
    Done,
    EpochFigures,
    FromController,
    PhaseOver,
    Progress,
    RunOutcome,
    WorkTimes,
)
from phalanx.wire.parameter_server import Finish
from phalanx.wire.relay import FromProcess, ProcessNote, SendToProcess
from phalanx.wire.switch import BeginPhase, PhaseBegun, PhaseIdle, StepLimit

SERVING = {"name": "parameter_server", "dispatch": "dynamic", "servers": 2}
SWITCH = {
    "name": "switch",
    "handover": "restart",
    "phases": [{"strategy": "allreduce"}, {"strategy": SERVING, "at": 0.5}],
}
OUTCOME = RunOutcome(
    precision="fp32",
    parameters=10,
    epochs=2,
    samples=2000,
    updates=40,
    train_s=4.0,
    evaluate_s=0.0,
    startup_s=1.0,
    stopped_early=False,
    train_loss=0.1,
    train_accuracy=0.9,
    regularisation=0.0,
    val_loss=None,
    val_accuracy=None,
    test_loss=None,
    test_accuracy=None,
    parameters_sha256="",
)
TIMES = WorkTimes(
    sent_bytes=1, input_s=1.0, compute_s=2.0, communication_s=3.0, wait_s=0.0, apply_s=0.5
)


class Desk:
    """Keeps what it is asked to do."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, FromController]] = []
        self.recorded: list[Event] = []

    def send(self, process: str, message: FromController) -> None:
        self.sent.append((process, message))

    def record(self, event: Event) -> None:
        self.recorded.append(event)

    def announce(self, report: EpochFigures) -> None: ...

    def progress(self, process: str) -> Progress:
        return Progress()

    def identity(self, process: str) -> Identity:
        raise AssertionError("nobody asks")


def coordinator(
    strategy: object, position: Position | None = None
) -> tuple[BackendCoordinator, Desk]:
    job = job_from_mapping(
        {
            "backend": "tensorflow",
            "workers": 2,
            "epochs": 2,
            "batch": {"global": 100},
            "strategy": strategy,
        }
    )
    controller = Desk()
    return BackendCoordinator(job, controller, position or Position()), controller


def process(name: str, **facts: Any) -> ProcessFacts:
    usual: dict[str, Any] = {"joined": True, "done": False, "silent_s": 0.0, "age_s": 60.0}
    return ProcessFacts(process=name, **(usual | facts))


def crew(*changed: ProcessFacts) -> list[ProcessFacts]:
    names = ("server-0", "server-1", "worker-0", "worker-1", "chief-0", "evaluator-0")
    found = {name: process(name) for name in names}
    return list((found | {one.process: one for one in changed}).values())


def test_every_strategy_has_its_processes() -> None:
    def names(strategy: object) -> list[str]:
        return [one.name for one in coordinator(strategy)[0].processes()]

    assert names("allreduce") == ["worker-0", "worker-1"]
    assert names("mirrored") == ["worker-0"]
    assert names(SERVING) == [one.process for one in crew()]


def test_whoever_comes_is_told_where_to_begin_and_where_to_end() -> None:
    plain, controller = coordinator("allreduce")
    plain.take("worker-1", PhaseIdle(1000))
    switching, other = coordinator(SWITCH)
    switching.take("worker-0", PhaseIdle(1000))
    [(to, begin)], [(_, first)] = controller.sent, other.sent
    assert to == "worker-1"
    assert isinstance(begin, BeginPhase)
    assert isinstance(first, BeginPhase)
    assert (begin.phase, begin.stop) == (0, None)
    assert (first.phase, first.stop) == (0, StepLimit(1, 0))


def test_words_are_passed_on_and_facts_of_the_run_written_down() -> None:
    serving, controller = coordinator(SERVING)
    serving.take("chief-0", SendToProcess("worker-1", b"steps"))
    assert controller.sent == [("worker-1", FromProcess("chief-0", b"steps"))]
    epoch = Epoch(
        epoch=0,
        samples=1,
        updates=1,
        train_loss=0.5,
        train_accuracy=0.5,
        regularisation=0.0,
        val_loss=None,
        val_accuracy=None,
        lr=0.1,
        train_s=1.0,
        evaluate_s=0.0,
    )
    serving.take("chief-0", ProcessNote(msgspec.json.encode(epoch)))
    assert controller.recorded == [epoch]


def test_a_lost_worker_or_evaluator_of_a_parameter_server_is_replaced() -> None:
    serving, _ = coordinator(SERVING)
    killed = process("worker-1", exit_code=-9)
    frozen = process("evaluator-0", silent_s=60.0)
    verdict = serving.judge(crew(killed, frozen))
    assert verdict.failure is None
    assert [one.process for one in verdict.replace] == ["worker-1", "evaluator-0"]


def test_without_a_server_or_the_chief_tensorflow_cannot_go_on() -> None:
    for name in ("server-1", "chief-0"):
        serving, _ = coordinator(SERVING)
        verdict = serving.judge(crew(process(name, exit_code=-9)))
        assert verdict.failure is not None
        assert verdict.failure.cause.startswith(f"{name} was killed by SIGKILL")


def test_the_worker_that_was_killed_is_named_and_not_the_one_that_missed_it() -> None:
    together, _ = coordinator("allreduce")
    missed = ReportedError(kind="PeerError", message="lost", traceback="", exit_code=4)
    facts = [process("worker-0", error=missed), process("worker-1", exit_code=-9)]
    verdict = together.judge(facts)
    assert verdict.failure is not None
    assert verdict.failure.process == "worker-1"


def test_a_frozen_worker_is_named_even_if_tensorflow_noticed_first() -> None:
    together, _ = coordinator("allreduce")
    missed = ReportedError(kind="PeerError", message="lost", traceback="", exit_code=4)
    complaint = process("worker-0", error=missed, exit_code=4)
    together._suspicion = -1e9
    assert together.judge([complaint, process("worker-1", silent_s=4.0)]).failure is None
    verdict = together.judge([complaint, process("worker-1", silent_s=60.0)])
    assert verdict.failure is not None
    assert verdict.failure.cause.startswith("worker-1 is frozen")
    # With everybody lively, the complaint is all there is.
    verdict = together.judge([complaint, process("worker-1")])
    assert verdict.failure is not None
    assert verdict.failure.process == "worker-0"


def test_a_setting_that_a_new_start_would_only_repeat_ends_the_run() -> None:
    serving, _ = coordinator(SERVING)
    wrong = ReportedError(kind="SpecError", message="no tensorflow", traceback="", exit_code=2)
    verdict = serving.judge(crew(process("worker-0", error=wrong, exit_code=2)))
    assert verdict.failure is not None
    assert verdict.failure.exit_code == ExitCode.BAD_INPUT


def test_when_the_chief_is_done_all_others_are_let_go() -> None:
    serving, controller = coordinator(SERVING)
    serving.take("chief-0", Done(outcome=OUTCOME))
    told = [name for name, message in controller.sent if isinstance(message, Finish)]
    assert told == [one.process for one in crew() if one.process != "chief-0"]
    assert not serving.judge(crew()).finished
    gone = [process(one.process, done=True, exit_code=0) for one in crew()]
    assert serving.judge(gone).finished
    assert serving.outcome() == OUTCOME
    assert serving.serving is not None
    assert (serving.serving.servers, serving.serving.updates_per_s) == (2, 10.0)


def test_one_phase_follows_another_and_times_add_up() -> None:
    first, _ = coordinator(SWITCH)
    over = Position(epoch=1, samples=1000, updates=10, train_s=2.0, phase=1, phase_begin=1000)
    for rank in range(2):
        first.take(f"worker-{rank}", PhaseOver(times=TIMES, position=msgspec.json.encode(over)))
    second = first.successor
    assert isinstance(second, BackendCoordinator)
    assert [one.name for one in second.processes()] == [one.process for one in crew()]
    second.take("worker-0", PhaseIdle(1000))
    second.take("chief-0", PhaseBegun(0.0))
    [switched] = second.switches
    assert isinstance(switched, Switched)
    assert (switched.before, switched.after) == ("allreduce", "parameter_server")
    assert (switched.epoch, switched.samples) == (1, 1000)
    second.take("chief-0", Done(outcome=OUTCOME))
    second.take("worker-1", Done(times=TIMES))
    assert second.times["worker-1"].compute_s == 4.0
    assert second.times["worker-0"].compute_s == 2.0
    assert second.serving is not None
    assert second.serving.updates_per_s == (40 - 10) / (4.0 - 2.0)
