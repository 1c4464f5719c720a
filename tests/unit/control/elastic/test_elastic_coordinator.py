"""Scripted workers, no real ones: what does an elastic run do when it loses some of them?"""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.control.elastic.coordinator import ElasticCoordinator
from phalanx.control.failure_policy import ProcessFacts, ReportedError
from phalanx.records.events import Epoch, Event
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.elastic import FormGroup, Halted, HaltGroup, JoinRequest
from phalanx.wire.messages import Done, EpochDone, EpochFigures, FromController, RunOutcome

FIGURES = EpochFigures(
    epoch=0,
    samples=10,
    updates=1,
    train_loss=0.5,
    train_accuracy=None,
    regularisation=0.0,
    val_loss=None,
    val_accuracy=None,
    lr=0.1,
    train_s=1.0,
    evaluate_s=0.0,
)
OUTCOME = RunOutcome(
    precision="fp32",
    parameters=1,
    epochs=1,
    samples=10,
    updates=1,
    train_s=1.0,
    evaluate_s=0.0,
    startup_s=1.0,
    stopped_early=False,
    train_loss=0.5,
    train_accuracy=None,
    regularisation=None,
    val_loss=None,
    val_accuracy=None,
    test_loss=None,
    test_accuracy=None,
    parameters_sha256="",
)


class Desk:
    """Keeps what a coordinator asks for."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, FromController]] = []
        self.events: list[Event] = []
        self.notes: list[tuple[str, str]] = []
        self.announced: list[int] = []

    def send(self, process: str, message: FromController) -> None:
        self.sent.append((process, message))

    def record(self, event: Event) -> None:
        self.events.append(event)

    def note(self, what: str, reason: str) -> None:
        self.notes.append((what, reason))

    def announce(self, report: EpochFigures) -> None:
        self.announced.append(report.epoch)

    def forms(self) -> dict[str, FormGroup]:
        """The newest group that each worker was told to form."""
        return {name: one for name, one in self.sent if isinstance(one, FormGroup)}


def facts(rank: int, **changes: Any) -> ProcessFacts:
    told: dict[str, Any] = {"joined": True, "done": False, "silent_s": 0.0, "age_s": 60.0}
    return ProcessFacts(process=f"worker-{rank}", **(told | changes))


def running(workers: int = 3, **elastic: int) -> tuple[ElasticCoordinator, Desk]:
    """A run whose first group trains."""
    desk = Desk()
    deadlines = {"start_s": 1e-9}
    job = job_from_mapping({"workers": workers, "elastic": elastic, "deadlines": deadlines})
    made = ElasticCoordinator(job, desk)  # type: ignore[arg-type]
    for rank in range(workers):
        made.take(f"worker-{rank}", JoinRequest())
    return made, desk


def test_the_first_group_forms_when_all_have_come() -> None:
    _, desk = running()
    forms = desk.forms()
    assert forms.keys() == {"worker-0", "worker-1", "worker-2"}
    assert {one.generation for one in forms.values()} == {1}
    assert desk.notes == []


def test_a_killed_worker_is_replaced_and_the_survivors_form_the_next_group() -> None:
    made, desk = running()
    verdict = made.judge([facts(0), facts(1, exit_code=-9), facts(2)])
    assert [one.process for one in verdict.replace] == ["worker-1"]
    made.left("worker-1")
    assert ("worker-0", HaltGroup(1)) in desk.sent
    made.take("worker-0", Halted(1, 7))
    assert desk.forms()["worker-0"].generation == 1
    made.take("worker-2", Halted(1, 7))
    form = desk.forms()["worker-2"]
    assert (form.generation, form.base) == (2, 7)
    assert [one.process for one in form.members] == ["worker-0", "worker-2"]
    assert all(one.has_state for one in form.members)
    made.judge([facts(0), facts(2)])
    assert desk.notes == [("2 workers go on", "without worker-1")]


def test_a_survivor_that_is_one_step_behind_takes_the_state_of_one_ahead() -> None:
    made, desk = running()
    made.left("worker-1")
    made.take("worker-0", Halted(1, 7))
    made.take("worker-2", Halted(1, 8))
    form = desk.forms()["worker-0"]
    assert [(one.process, one.has_state) for one in form.members] == [
        ("worker-2", True),
        ("worker-0", False),
    ]
    assert form.base == 8


def test_the_last_worker_with_the_state_cannot_be_spared() -> None:
    made, _ = running(workers=2)
    made.left("worker-1")
    made.take("worker-0", Halted(1, 7))
    failure = made.judge([facts(0, exit_code=-9)]).failure
    assert failure is not None
    assert "worker-0 was killed by SIGKILL" in failure.cause
    assert "no other worker has the state of the run" in failure.cause


@pytest.mark.parametrize(("kind", "ends"), [("EngineError", True), ("TimeoutExpired", False)])
def test_an_error_that_a_successor_would_meet_too_ends_the_run(kind: str, ends: bool) -> None:
    made, _ = running()
    error = ReportedError(kind, "it broke", "", 1)
    verdict = made.judge([facts(0), facts(1, error=error), facts(2)])
    assert (verdict.failure is not None) is ends
    assert bool(verdict.replace) is not ends


def test_below_the_minimum_the_run_waits_and_then_ends_with_the_cause() -> None:
    made, desk = running(workers=2, min=2)
    made.judge([facts(0), facts(1, exit_code=-9)])
    made.left("worker-1")
    made.take("worker-0", Halted(1, 7))
    failure = made.judge([facts(0)]).failure or made.judge([facts(0)]).failure
    assert desk.notes == [("waiting for 1 more worker", "elastic.min is 2")]
    assert failure is not None
    assert failure.cause.startswith("worker-1 was killed by SIGKILL")
    assert "elastic.min" in failure.cause


def test_a_successor_joins_at_a_boundary() -> None:
    made, desk = running()
    made.left("worker-1")
    for name in ("worker-0", "worker-2"):
        made.take(name, Halted(1, 7))
    made.take("worker-1", JoinRequest())
    for name in ("worker-0", "worker-2"):
        made.take(name, Halted(2, 9, planned=True))
    form = desk.forms()["worker-1"]
    assert form.generation == 3
    assert [(one.process, one.has_state) for one in form.members] == [
        ("worker-0", True),
        ("worker-2", True),
        ("worker-1", False),
    ]
    made.judge([facts(rank) for rank in range(3)])
    assert desk.notes[-1] == ("3 workers go on", "worker-1 joined")


def test_one_that_the_others_cannot_reach_is_left_out() -> None:
    made, _ = running()
    for generation in range(1, 5):
        assert not made.judge([facts(rank) for rank in range(3)]).replace
        for rank, suspects in ((0, ("worker-2",)), (1, ("worker-2",)), (2, ("worker-0",))):
            made.take(f"worker-{rank}", Halted(generation, 0, suspects=suspects))
    verdict = made.judge([facts(rank) for rank in range(3)])
    assert [one.process for one in verdict.replace] == ["worker-2"]


def test_an_epoch_is_recorded_once_whoever_announces_it() -> None:
    made, desk = running()
    made.take("worker-0", EpochDone(FIGURES))
    made.take("worker-2", EpochDone(FIGURES))
    assert desk.announced == [0]
    assert [type(one) for one in desk.events] == [Epoch]


def test_the_run_is_finished_when_all_members_are_done() -> None:
    made, _ = running(workers=2)
    made.take("worker-1", Done(outcome=OUTCOME))
    done = facts(1, done=True, exit_code=0)
    assert not made.judge([facts(0), done]).finished
    made.take("worker-0", Done(outcome=OUTCOME))
    assert made.judge([facts(0, done=True, exit_code=0), done]).finished
    assert made.outcome() == OUTCOME
