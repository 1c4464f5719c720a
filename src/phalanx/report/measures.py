"""List the measures of a run with their formats, for tables, charts and recommendations.

Values come from the stored summary and the stored samples of resource use; a few are derived from
them here, as their title or the notes of the report explain. Between two epoch ends nothing is
measured, so nothing is interpolated there: a curve's points are epoch ends, and a target is reached
at the first epoch end that meets it. Seconds are training time, without start-up and evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from phalanx.records.events import Epoch
from phalanx.report.cells import Cell
from phalanx.report.facts import RunRecord
from phalanx.report.stats import Contrast, Estimate, contrast_by_seed, estimate

_MIB = 1 / 2**20


class Measure(msgspec.Struct, frozen=True):
    """One measure, and how its values are shown."""

    key: str
    title: str
    unit: str = ""
    scale: float = 1.0
    """Factor from stored to shown unit."""
    digits: int | None = None
    """After the decimal point; None: as many as three significant digits need."""
    high_is_good: bool = False


MEASURES = {
    measure.key: measure
    for measure in (
        Measure("test_accuracy", "test accuracy", "%", 100, 2, high_is_good=True),
        Measure("val_accuracy", "validation accuracy", "%", 100, 2, high_is_good=True),
        Measure("train_accuracy", "training accuracy", "%", 100, 2, high_is_good=True),
        Measure("test_loss", "test loss", digits=4),
        Measure("val_loss", "validation loss", digits=4),
        Measure("train_loss", "training loss", digits=4),
        Measure("train_s", "training time", "s"),
        Measure("elapsed_s", "elapsed", "s"),
        Measure("startup_s", "start-up", "s"),
        Measure("evaluate_s", "evaluation", "s"),
        Measure("samples_per_s", "speed", "samples/s", digits=0, high_is_good=True),
        Measure("updates", "updates", digits=0),
        Measure("bytes_sent", "sent by workers", "MiB", _MIB),
        Measure("machine_s", "machine time", "s"),
        Measure("cost", "cost"),
        Measure("energy_j", "energy", "J"),
        Measure("cpu_s", "processor time", "s"),
        Measure("memory_peak_bytes", "peak memory of a process", "MiB", _MIB, 0),
        Measure("received_bytes", "received by machines", "MiB", _MIB),
    )
}
_EXTENTS = ("least", "mean", "greatest")
CLUSTER = {
    field: (
        title,
        {
            extent: Measure(f"cluster_{field}_{extent}", f"{title}, {extent}", unit, scale, digits)
            for extent in _EXTENTS
        },
    )
    for field, title, unit, scale, digits in (
        ("cpu_share", "processors", "%", 100, 1),
        ("memory_bytes", "memory in use", "GB", 1e-9, 2),
        ("received_bytes_per_s", "network in", "MB/s", 1e-6, 2),
        ("sent_bytes_per_s", "network out", "MB/s", 1e-6, 2),
        ("load", "load", "", 1, 1),
    )
}
"""Title and measures (least, mean, greatest) of the use of all machines together."""
_OF_CLUSTER = {
    measure.key: (field, extent)
    for field, (_, measures) in CLUSTER.items()
    for extent, measure in measures.items()
}
MEASURES |= {one.key: one for _, measures in CLUSTER.values() for one in measures.values()}
QUALITY = {
    measure.key: measure
    for measure in (
        Measure("kappa", "kappa", digits=3, high_is_good=True),
        Measure("mean_class_accuracy", "class mean", "%", 100, 2, high_is_good=True),
        Measure("within_one", "within one", "%", 100, 2, high_is_good=True),
        Measure("r2", "R²", digits=4, high_is_good=True),
        Measure("mae", "mean absolute error"),
        Measure("rmse", "root mean square error"),
    )
}
"""Metrics of the test part other than accuracy."""


def metrics_of(cells: Sequence[Cell]) -> dict[str, Measure]:
    """Return the metrics of the test part, other than accuracy, that any of these runs has."""
    taken = {
        key
        for cell in cells
        for run in cell.finished
        if run.summary is not None
        for key in run.summary.test_metrics
    }
    known = {key: measure for key, measure in QUALITY.items() if key in taken}
    others = sorted(taken - QUALITY.keys() - {"accuracy"})
    return known | {key: Measure(key, key, digits=4) for key in others}


_QUALITIES = (
    "test_accuracy",
    "val_accuracy",
    "train_accuracy",
    "test_loss",
    "val_loss",
    "train_loss",
)


def value_of(run: RunRecord, key: str) -> float | None:
    """Return a measure of a run in its stored unit; None if it was not taken."""
    summary = run.summary
    if summary is None:
        return None
    if key == "machine_s":
        return summary.elapsed_s * len(run.machines)
    if key == "received_bytes":
        received = [use.figure("received_bytes") for use in run.resources if use.is_machine]
        return float(sum(one or 0 for one in received)) if received else None
    if key in _OF_CLUSTER:
        field, extent = _OF_CLUSTER[key]
        found = getattr(run.cluster, field, None)
        return None if found is None else float(getattr(found, extent))
    if key in QUALITY or key in summary.test_metrics:
        return summary.test_metrics.get(key)
    value = getattr(summary, key, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def values_by_seed(cell: Cell, key: str) -> dict[int, list[float]]:
    """Return a measure of the finished runs of a cell, by seed."""
    found: dict[int, list[float]] = {}
    for run in cell.finished:
        value = value_of(run, key)
        if value is not None:
            found.setdefault(run.seed, []).append(value)
    return found


def estimate_cell(cell: Cell, key: str) -> Estimate | None:
    """Estimate mean and interval over the finished runs of a cell; None without a value."""
    values = [value for values in values_by_seed(cell, key).values() for value in values]
    return estimate(values) if values else None


def contrast_cells(first: Cell, second: Cell, key: str) -> Contrast | None:
    """Compare two cells, first against second; None if one of them has no value."""
    one, other = values_by_seed(first, key), values_by_seed(second, key)
    return contrast_by_seed(one, other) if one and other else None


def quality_measure(cells: Sequence[Cell]) -> Measure | None:
    """Choose the measure of quality: the best one that every finished run has."""
    runs = [run for cell in cells for run in cell.finished]
    for key in _QUALITIES:
        if runs and all(value_of(run, key) is not None for run in runs):
            return MEASURES[key]
    return None


def shared_digits(measure: Measure, values: Iterable[float | None]) -> int:
    """Return the number of decimals for all values of a column, so that their points align."""
    if measure.digits is not None:
        return measure.digits
    known = [abs(value * measure.scale) for value in values if value]
    return max(0, min(3, 2 - math.floor(math.log10(min(known))))) if known else 0


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
