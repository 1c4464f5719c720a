from __future__ import annotations

import pytest

from phalanx.errors import SpecError
from phalanx.records.improvement import is_better, may_stop, note_validation
from phalanx.records.position import Position
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.metrics import direction_of


@pytest.mark.parametrize(
    ("monitor", "value", "best", "min_delta", "expected"),
    [
        ("val_loss", 5.0, None, 0.0, True),
        ("val_accuracy", 0.0, None, 9.0, True),
        ("val_loss", 0.4, 0.5, 0.0, True),
        ("val_loss", 0.5, 0.5, 0.0, False),
        ("val_loss", 0.6, 0.5, 0.0, False),
        ("val_accuracy", 0.6, 0.5, 0.0, True),
        ("val_accuracy", 0.5, 0.5, 0.0, False),
        ("val_accuracy", 0.4, 0.5, 0.0, False),
        ("val_loss", 0.25, 0.5, 0.25, False),
        ("val_loss", 0.24, 0.5, 0.25, True),
        ("val_accuracy", 0.75, 0.5, 0.25, False),
        ("val_accuracy", 0.76, 0.5, 0.25, True),
        ("val_loss", float("nan"), 0.5, 0.0, False),
        ("val_accuracy", float("nan"), 0.5, 0.0, False),
    ],
)
def test_better_means_beyond_the_best_by_more_than_the_least_difference(
    monitor: str, value: float, best: float | None, min_delta: float, expected: bool
) -> None:
    direction = direction_of(monitor, ())
    assert is_better(direction, value, best, min_delta=min_delta) is expected


def after(epoch: int, accuracy: float, **early: object) -> Position:
    """Where a run stands when an accuracy was measured after an epoch."""
    job = job_from_mapping({"early_stop": {"monitor": "val_accuracy", **early}, "epochs": 9})
    position = Position(epoch=epoch, val_accuracy=accuracy)
    note_validation(job, position)
    return position


BAR = {"patience": None, "bar": {"epoch": 4, "value": 0.5}}


@pytest.mark.parametrize(
    ("epoch", "accuracy", "stops"),
    [(4, 0.49, True), (4, 0.5, False), (3, 0.1, False), (5, 0.1, False), (4, float("nan"), True)],
)
def test_a_bar_ends_the_run_after_its_epoch_alone(epoch: int, accuracy: float, stops: bool) -> None:
    assert after(epoch, accuracy, **BAR).stopped_early is stops


def test_the_bar_of_a_loss_lies_above() -> None:
    job = job_from_mapping({"early_stop": {"bar": {"epoch": 1, "value": 0.5}}})
    for loss, stops in [(0.4, False), (0.5, False), (0.6, True)]:
        position = Position(epoch=1, val_loss=loss)
        note_validation(job, position)
        assert position.stopped_early is stops


def test_training_waits_only_for_measures_that_can_end_it() -> None:
    barred = job_from_mapping({"early_stop": BAR, "epochs": 9})
    assert [epoch for epoch in range(1, 10) if may_stop(barred, epoch)] == [4]
    patient = job_from_mapping({"early_stop": {}, "epochs": 9})
    assert all(may_stop(patient, epoch) for epoch in range(1, 10))
    assert not may_stop(job_from_mapping({}), 1)


def test_without_an_accuracy_the_loss_decides_which_is_best() -> None:
    # As a job file of an earlier version says it, or a loss of the user's own on values.
    job = job_from_mapping({"loss": "mse", "epochs": 9, "checkpoint": {"best": "val_accuracy"}})
    position = Position()
    best = []
    for epoch, loss in enumerate((12.0, 11.8, 11.9, 11.7), start=1):
        position.epoch, position.val_loss = epoch, loss
        if note_validation(job, position):
            best.append(epoch)
    assert best == [1, 2, 4]
    assert position.best_value == 11.7


def test_an_accuracy_that_cannot_be_is_not_waited_for() -> None:
    with pytest.raises(SpecError, match="'mse' is for values, which have no accuracy; set 'val_"):
        job_from_mapping({"loss": "mse", "early_stop": {"monitor": "val_accuracy"}})
    # A loss of the user's own on values: only the data tells.
    job = job_from_mapping({"early_stop": {"monitor": "val_accuracy", "patience": 1}, "epochs": 9})
    position = Position(epoch=1, val_loss=2.0)
    note_validation(job, position)
    position.epoch, position.val_loss = 2, 1.0
    note_validation(job, position)
    assert not position.stopped_early
    position.epoch, position.val_loss = 3, 1.5
    note_validation(job, position)
    assert position.stopped_early


@pytest.mark.parametrize(
    ("fields", "best"),
    [
        ({}, "val_accuracy"),
        ({"loss": "mse"}, "val_loss"),
        ({"loss": {"name": "mse"}, "checkpoint": {"keep": 2}}, "val_loss"),
        ({"loss": "mse", "checkpoint": {"best": None}}, None),
    ],
)
def test_the_best_checkpoint_is_by_a_metric_that_the_loss_has(
    fields: dict[str, object], best: str | None
) -> None:
    job = job_from_mapping(fields)
    assert job.checkpoint.best == best
    assert job_from_mapping(job.model_dump(mode="json", by_alias=True)) == job


@pytest.mark.parametrize(
    ("metric", "mode", "best"),
    [("my:f1", "auto", [1, 3]), ("my:error", "min", [1, 2]), ("perplexity", "auto", [1, 2])],
)
def test_any_metric_decides_by_its_direction(metric: str, mode: str, best: list[int]) -> None:
    name = metric.rpartition(":")[2]
    job = job_from_mapping(
        {
            "metrics": [{"name": metric, "mode": mode}],
            "checkpoint": {"best": f"val_{name}"},
            "early_stop": {"monitor": f"val_{name}", "patience": 9},
            "epochs": 9,
        }
    )
    position, found = Position(), []
    for epoch, value in enumerate((0.5, 0.4, 0.6), start=1):
        position.epoch, position.val_loss, position.val_metrics = epoch, 1.0, {name: value}
        if note_validation(job, position):
            found.append(epoch)
    assert found == best


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpoint": {"best": "val_f1"}}, "nothing measures 'val_f1'"),
        ({"checkpoint": {"best": "val_acuracy"}}, "did you mean 'val_accuracy'"),
        ({"early_stop": {"monitor": "loss"}}, "'loss' is no figure of validation"),
        ({"metrics": ["my:f1", "your:f1"]}, "names 'f1' twice"),
        ({"metrics": ["perplexty"]}, "did you mean 'perplexity'"),
        ({"metrics": ["my:f1"], "strategy": "split", "workers": 2}, "split has no metrics"),
    ],
)
def test_figures_that_nothing_measures_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        job_from_mapping(fields)
