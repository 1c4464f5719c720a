"""Learning curves and the time to a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.report.cells import Cell, group_runs
from phalanx.report.document import Figure
from phalanx.report.facts import read_material
from phalanx.report.measures import curve_of, spread, time_to
from phalanx.report.parts.learning import _first_measured, learning
from phalanx.report.scope import Options, open_scope
from support.records import Outcome, write_run

JOB = {"name": "tiny", "model": "mlp", "data": "digits", "workers": 2, "strategy": "allreduce"}


def cell_of(root: Path, *outcomes: Outcome) -> Cell:
    for seed, outcome in enumerate(outcomes, start=1):
        write_run(root, f"run-{seed}", {**JOB, "seed": seed}, outcome)
    (cell,) = group_runs(read_material([root]))
    return cell


def test_points_are_means_and_ranges_at_epoch_ends(tmp_path: Path) -> None:
    cell = cell_of(
        tmp_path,
        Outcome(accuracy=0.9, train_s=10.0, epochs=2),
        Outcome(accuracy=0.6, train_s=20.0, epochs=2),
    )
    first, last = curve_of(cell, "val_accuracy")
    # After epoch 1 of 2 the made-up accuracy is two thirds of the last.
    assert (first.epoch, first.train_s, first.num_runs) == (1, pytest.approx(7.5), 2)
    assert (first.mean, first.low, first.high) == pytest.approx((0.5, 0.4, 0.6))
    assert (last.epoch, last.mean) == (2, pytest.approx(0.75))


def test_long_curves_keep_their_ends(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, Outcome(epochs=500))
    points = curve_of(cell, "train_loss", max_points=300)
    assert len(points) == 300
    assert (points[0].epoch, points[-1].epoch) == (1, 500)
    assert spread([1, 2, 3], 5) == [1, 2, 3]


def test_a_target_is_reached_at_an_epoch_end(tmp_path: Path) -> None:
    (run,) = cell_of(tmp_path, Outcome(accuracy=0.9, train_s=10.0, epochs=2)).runs
    assert time_to(run, "val_accuracy", 0.6) == pytest.approx(5.0)
    assert time_to(run, "val_accuracy", 0.61) == pytest.approx(10.0)
    assert time_to(run, "val_accuracy", 0.91) is None
    assert time_to(run, "val_loss", 0.6) == pytest.approx(10.0)
    # The test set is measured once, at the end.
    assert time_to(run, "test_accuracy", 0.5) == pytest.approx(10.0)
    assert time_to(run, "test_accuracy", 0.95) is None


def test_curves_are_drawn_of_what_every_cell_has_by_epoch(tmp_path: Path) -> None:
    cell = cell_of(tmp_path, Outcome(epochs=3))
    keys = ("val_accuracy", "train_accuracy", "val_loss")
    measure = _first_measured([cell], keys)
    assert measure is not None
    assert measure.key == "val_accuracy"
    run = cell.finished[0]
    # As `evaluate: end` leaves it, or servers that measured an empty part once.
    for epoch in run.epochs[:-1]:
        epoch.val_accuracy = epoch.val_loss = None
    measure = _first_measured([cell], keys)
    assert measure is not None
    assert measure.key == "train_accuracy"


@pytest.mark.parametrize("part", ["auto", "test"])
def test_both_losses_and_accuracies_are_drawn_and_a_test_part_is_named(
    tmp_path: Path, part: str
) -> None:
    job = {**JOB, "data": {"name": "digits", "validation": part}}
    write_run(tmp_path, "run", job, Outcome(epochs=3))
    chapter = learning(open_scope(read_material([tmp_path]), Options()))
    assert chapter is not None
    figure = next(block for block in chapter.blocks if isinstance(block, Figure))
    assert [panel.title for panel in figure.panels] == [
        "Validation accuracy by epoch",
        "Validation accuracy by training time",
        "Training accuracy by epoch",
        "Validation loss by epoch",
        "Training loss by epoch",
    ]
    assert ("measured on the test part" in figure.caption) == (part == "test")
