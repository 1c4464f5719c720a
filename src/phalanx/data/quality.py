"""How good predictions are: measures by name, each a function of true and predicted classes. Pure.

Notation: K classes, n_ij samples of class i that were called j, n their number. Where classes are
ranges of a number, z is the middle of a sample's true class, z' that of the class it was given, and
d = (z' - z) / (1 + z) the error as astronomers count it. Called by the worker after an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Scale
from phalanx.spec.data import MetricName

Counts = npt.NDArray[np.int64]

NEED_SCALE: frozenset[MetricName] = frozenset({"nmad", "outliers", "catastrophic"})
"""Measures of classes that are ranges of a number."""
OUTLIER, CATASTROPHE = 0.001, 0.15


@dataclass(frozen=True)
class Verdicts:
    """What a model said about samples whose class is known."""

    actual: Counts
    predicted: Counts
    num_classes: int
    scale: Scale | None = None

    def confusion(self) -> Counts:
        """n_ij, one row per true class; a class that the data does not have counts as the last."""
        size = self.num_classes
        pairs = self.actual * (size + 1) + np.minimum(self.predicted, size)
        return np.bincount(pairs, minlength=size * (size + 1)).reshape(size, size + 1)

    def errors(self) -> npt.NDArray[np.float64]:
        """D of every sample."""
        assert self.scale is not None
        low, width = self.scale.low, self.scale.width
        actual = low + (self.actual.astype(np.float64) + 0.5) * width
        found = low + (self.predicted.astype(np.float64) + 0.5) * width
        return np.asarray((found - actual) / (1 + actual), dtype=np.float64)


def per_class_accuracy(confusion: Counts) -> list[float | None]:
    """Share of each true class that was called right; None for a class without samples."""
    totals = confusion.sum(axis=1)
    right = np.diagonal(confusion)
    return [
        int(one) / int(total) if total else None for one, total in zip(right, totals, strict=True)
    ]


def measure_quality(names: Sequence[MetricName], verdicts: Verdicts) -> dict[str, float]:
    """The measures that were asked for; empty if there is no sample."""
    if len(verdicts.actual) == 0:
        return {}
    return {name: float(MEASURES[name](verdicts)) for name in names}


def _accuracy(verdicts: Verdicts) -> float:
    return float(np.mean(verdicts.actual == verdicts.predicted))


def _mean_class_accuracy(verdicts: Verdicts) -> float:
    known = [one for one in per_class_accuracy(verdicts.confusion()) if one is not None]
    return sum(known) / len(known)


def _kappa(verdicts: Verdicts) -> float:
    """Cohen's kappa: agreement beyond what the two distributions of classes give by chance."""
    confusion = verdicts.confusion()
    total = int(confusion.sum())
    agreed = int(np.diagonal(confusion).sum()) / total
    of_true, of_found = confusion.sum(axis=1), confusion.sum(axis=0)[: verdicts.num_classes]
    chance = float((of_true / total) @ (of_found / total))
    return 1.0 if chance == 1 else (agreed - chance) / (1 - chance)


def _within_one(verdicts: Verdicts) -> float:
    return float(np.mean(np.abs(verdicts.actual - verdicts.predicted) <= 1))


def _nmad(verdicts: Verdicts) -> float:
    """Normalised median absolute deviation: 1.4826 median |d - median d|."""
    errors = verdicts.errors()
    return 1.4826 * float(np.median(np.abs(errors - np.median(errors))))


def _share_beyond(limit: float) -> Callable[[Verdicts], float]:
    return lambda verdicts: float(np.mean(np.abs(verdicts.errors()) > limit))


MEASURES: dict[MetricName, Callable[[Verdicts], float]] = {
    "accuracy": _accuracy,
    "mean_class_accuracy": _mean_class_accuracy,
    "kappa": _kappa,
    "within_one": _within_one,
    "nmad": _nmad,
    "outliers": _share_beyond(OUTLIER),
    "catastrophic": _share_beyond(CATASTROPHE),
}
"""Every measure: its name in a job file, and what computes it."""
