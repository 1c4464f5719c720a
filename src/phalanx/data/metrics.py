"""Compute metrics of predicted classes. Pure.

Notation: K classes, n_ij samples of class i predicted as j, n their sum. Called by workers after an
evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Scale
from phalanx.spec.data import METRICS, MetricName
from phalanx.spec.registry import load

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Predictions:
    """Predicted and true classes of samples."""

    actual: Counts
    predicted: Counts
    num_classes: int
    scale: Scale | None = None

    def confusion(self) -> Counts:
        """Return n_ij, one row per true class; a class that the data lacks counts as the last."""
        size = self.num_classes
        pairs = self.actual * (size + 1) + np.minimum(self.predicted, size)
        return np.bincount(pairs, minlength=size * (size + 1)).reshape(size, size + 1)


def per_class_accuracy(confusion: Counts) -> list[float | None]:
    """Compute the accuracy of each true class; None for a class without samples."""
    totals = confusion.sum(axis=1)
    right = np.diagonal(confusion)
    return [
        int(one) / int(total) if total else None for one, total in zip(right, totals, strict=True)
    ]


def compute_metrics(names: Sequence[MetricName], predictions: Predictions) -> dict[str, float]:
    """Compute the requested metrics, by their names in records; empty without samples."""
    if len(predictions.actual) == 0:
        return {}
    found: dict[str, float] = {}
    for kind in map(METRICS.find, names):
        function = cast("Callable[[Predictions], float]", load(kind.function))
        found[kind.name] = float(function(predictions))
    return found


def value_metrics(
    targets: npt.NDArray[np.float32], absolute_error: float, squared_error: float
) -> dict[str, float]:
    """Compute the metrics of predicted values: mean absolute error, root mean square error and R².

    R² is 1 - squared error / variance of the targets, over all values of a sample together; without
    variance there is none, and without samples there is no metric at all.

    Args:
        targets: Of all samples of the part.
        absolute_error: Summed over samples; of a sample, the mean over its values.
        squared_error: Likewise.
    """
    count = len(targets)
    if count == 0 or not math.isfinite(absolute_error + squared_error):
        return {}
    found = {"mae": absolute_error / count, "rmse": math.sqrt(squared_error / count)}
    variance = float(targets.reshape(count, -1).astype(np.float64).var(axis=0).mean())
    return found if variance == 0 else found | {"r2": 1 - squared_error / count / variance}


def accuracy(predictions: Predictions) -> float:
    """Compute the share of samples that were classified right."""
    return float(np.mean(predictions.actual == predictions.predicted))


def mean_class_accuracy(predictions: Predictions) -> float:
    """Compute the mean over classes of the accuracy of each."""
    known = [one for one in per_class_accuracy(predictions.confusion()) if one is not None]
    return sum(known) / len(known)


def kappa(predictions: Predictions) -> float:
    """Compute Cohen's kappa: agreement beyond what both distributions of classes give by chance."""
    confusion = predictions.confusion()
    total = int(confusion.sum())
    agreed = int(np.diagonal(confusion).sum()) / total
    of_true, of_found = confusion.sum(axis=1), confusion.sum(axis=0)[: predictions.num_classes]
    chance = float((of_true / total) @ (of_found / total))
    return 1.0 if chance == 1 else (agreed - chance) / (1 - chance)


def within_one(predictions: Predictions) -> float:
    """Compute the share of samples whose class is off by at most one."""
    return float(np.mean(np.abs(predictions.actual - predictions.predicted) <= 1))
