"""Compute learning curves over seeds: mean and range at the end of every epoch; pure.

Between two epoch ends nothing is measured, so nothing is interpolated there: a curve's points are
epoch ends, and a target is reached at the first epoch end that meets it. Seconds are training time,
without start-up and evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from phalanx.records.events import Epoch
from phalanx.report.cells import Cell
from phalanx.report.facts import RunRecord


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a cell at the end of one epoch."""

    epoch: int
    """From 1."""
    train_s: float
    """Mean over the runs; so are the next two."""
    updates: float
    samples: float
    mean: float
    low: float
    """The lowest run, and the highest."""
    high: float
    num_runs: int


def curve_of(cell: Cell, key: str, *, max_points: int | None = None) -> list[CurvePoint]:
    """Return a measure by epoch; of long runs evenly spaced epochs, the last one included."""
    points: dict[int, list[tuple[Epoch, float]]] = {}
    for run in cell.finished:
        for epoch in run.epochs:
            value = _measure(epoch, key)
            if value is not None:
                points.setdefault(epoch.epoch, []).append((epoch, value))
    numbers = sorted(points)
    if max_points is not None:
        numbers = spread(numbers, max_points)
    return [_point(number, points[number]) for number in numbers]


def spread(numbers: Sequence[int], max_points: int) -> list[int]:
    """Choose at most so many numbers, evenly spaced, with the first and the last."""
    if len(numbers) <= max_points:
        return list(numbers)
    step = (len(numbers) - 1) / (max_points - 1)
    return [numbers[round(index * step)] for index in range(max_points)]


def time_to(run: RunRecord, key: str, target: float) -> float | None:
    """Return the training time until a measure meets a target; None if it never did.

    Test accuracy is measured once, at the end: it is met there or not at all.
    """
    if key == "test_accuracy":
        summary = run.summary
        met = summary is not None and (summary.test_accuracy or 0.0) >= target
        return summary.train_s if summary is not None and met else None
    for epoch in run.epochs:
        value = _measure(epoch, key)
        if value is not None and (value <= target if key.endswith("loss") else value >= target):
            return epoch.train_s
    return None


def _measure(epoch: Epoch, key: str) -> float | None:
    value: float | None = getattr(epoch, key)
    return value


def _point(number: int, values: Sequence[tuple[Epoch, float]]) -> CurvePoint:
    measured = [value for _, value in values]
    return CurvePoint(
        epoch=number + 1,
        train_s=fmean(epoch.train_s for epoch, _ in values),
        updates=fmean(epoch.updates for epoch, _ in values),
        samples=fmean(epoch.samples for epoch, _ in values),
        mean=fmean(measured),
        low=min(measured),
        high=max(measured),
        num_runs=len(values),
    )
