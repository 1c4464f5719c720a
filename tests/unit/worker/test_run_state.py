"""RunState: what is due when, and what is reported; pure."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.records import events
from phalanx.records.measures import Measures, ModelFigures
from phalanx.records.position import Position
from phalanx.spec.loader import job_from_mapping
from phalanx.wire.messages import EpochDone
from phalanx.wire.switch import StepLimit
from phalanx.worker.run_state import ResumePoint, RunState

TRAIN = Measures(loss=1.5, accuracy=0.5, num_samples=100, duration_s=2.0)


def validation(loss: float) -> Measures:
    return Measures(
        loss=loss, accuracy=0.25, num_samples=20, duration_s=0.5, metrics={"kappa": 1.0 - loss}
    )


class Size:
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples


class SizesOnly:
    """As much of a data set as a run state looks at."""

    def __init__(self, *, validation: int = 20, test: int = 20) -> None:
        self.epoch_samples = 100
        self.validation, self.test = Size(validation), Size(test)


class Channel:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


class Kept:
    """A run state, and everything that it wrote and sent."""

    def __init__(
        self, *, chief: bool = True, dataset: SizesOnly | None = None, **settings: Any
    ) -> None:
        job = job_from_mapping({"batch": {"global": 10}, "epochs": 3} | settings)
        self.channel = Channel()
        self.events: list[events.Event] = []
        self.state = RunState(
            job,
            Position(),
            dataset=dataset or SizesOnly(),  # type: ignore[arg-type]  # only sizes are asked for
            control=self.channel,  # type: ignore[arg-type]  # only sends
            record=self.events.append if chief else None,
        )

    def train_epoch(self) -> None:
        for _ in range(10):
            self.state.count_step(10)

    def end_epoch(self, loss: float | None = 1.0) -> tuple[bool, bool]:
        self.train_epoch()
        end = self.state.end_epoch(
            TRAIN, None if loss is None else validation(loss), regularisation=0.125, lr=0.1
        )
        return end.save, end.is_best


def test_an_epoch_is_reported_with_the_same_figures_to_log_and_controller() -> None:
    kept = Kept()
    kept.end_epoch(0.75)
    measured, epoch = kept.events
    assert isinstance(measured, events.Evaluation)
    assert (measured.part, measured.epoch, measured.metrics) == ("validation", 0, {"kappa": 0.25})
    (sent,) = kept.channel.sent
    assert isinstance(sent, EpochDone)
    assert epoch == events.Epoch.of(sent.figures)
    assert (sent.figures.epoch, sent.figures.samples, sent.figures.updates) == (0, 100, 10)
    assert (sent.figures.regularisation, sent.figures.evaluate_s) == (0.125, 0.5)
    assert (sent.figures.train_loss, sent.figures.val_loss) == (1.5, 0.75)
    position = kept.state.position
    assert (position.epoch, position.epoch_samples) == (1, 0)


def test_others_than_the_chief_decide_alike_and_write_nothing() -> None:
    chief, other = (Kept(chief=one, early_stop={"patience": 1}) for one in (True, False))
    for loss in (0.5, 0.6):
        assert chief.end_epoch(loss) == other.end_epoch(loss)
    assert chief.state.position == other.state.position
    assert other.state.is_over
    assert not other.events
    assert not other.channel.sent


@pytest.mark.parametrize(
    ("evaluate", "due"),
    [("epoch", [True, True, True]), ("end", [False, False, True]), ("never", [False] * 3)],
)
def test_validation_is_due_when_the_job_says(evaluate: str, due: list[bool]) -> None:
    kept = Kept(evaluate=evaluate)
    found = []
    for _ in range(3):
        found.append(kept.state.is_validation_due)
        kept.end_epoch(None)
    assert found == due
    assert kept.state.is_test_due == (evaluate != "never")


def test_a_part_without_samples_is_never_due() -> None:
    state = Kept(evaluate="epoch", dataset=SizesOnly(validation=0, test=0)).state
    assert not state.is_validation_due
    assert not state.is_test_due


def test_a_checkpoint_within_an_epoch_is_not_due_at_its_end() -> None:
    state = Kept(checkpoint={"every_steps": 5}).state
    due = []
    for _ in range(10):
        state.count_step(10)
        due.append(state.is_mid_epoch_checkpoint_due)
    assert due == [False] * 4 + [True] + [False] * 5
    assert state.is_at_end_of_epoch


def test_epochs_are_saved_as_the_job_says_and_the_last_one_always() -> None:
    kept = Kept(checkpoint={"every_epochs": 2})
    assert [kept.end_epoch(None)[0] for _ in range(3)] == [False, True, True]


def test_the_best_epoch_is_saved_as_such() -> None:
    kept = Kept(checkpoint={"every_epochs": 3, "best": "val_loss"})
    assert kept.end_epoch(0.5) == (True, True)
    assert kept.end_epoch(0.9) == (False, False)


def test_a_limit_is_reached_by_whole_steps() -> None:
    state = Kept().state
    state.count_step(10)
    assert not state.is_at(None)
    assert not state.is_at(StepLimit(0, 2))
    state.count_step(5)
    assert state.is_at(StepLimit(0, 2))
    assert not state.is_at(StepLimit(1, 0))


def test_a_resumed_run_keeps_its_own_number_of_workers() -> None:
    kept = Kept()
    kept.state.position.num_workers = 4
    kept.state.resume(None)
    kept.state.resume(ResumePoint(Position(epoch=2, samples=200, num_workers=2), "samples-200"))
    assert (kept.state.position.epoch, kept.state.position.num_workers) == (2, 4)
    warned, resumed = kept.events
    assert isinstance(warned, events.Warned)
    assert resumed == events.Resumed(path="samples-200", epoch=2, samples=200)


def test_the_outcome_has_the_last_epoch_and_the_test_part() -> None:
    kept = Kept()
    kept.end_epoch(0.75)
    model = ModelFigures(num_parameters=7, digest="abc", regularisation=0.25)
    outcome = kept.state.outcome(model, validation(0.5), precision="fp32", startup_s=1.0)
    assert (outcome.epochs, outcome.samples, outcome.updates) == (1, 100, 10)
    assert (outcome.train_loss, outcome.val_loss, outcome.test_loss) == (1.5, 0.75, 0.5)
    assert (outcome.val_metrics, outcome.test_metrics) == ({"kappa": 0.25}, {"kappa": 0.5})
    assert (outcome.parameters, outcome.parameters_sha256) == (7, "abc")
    assert outcome.regularisation == 0.25
