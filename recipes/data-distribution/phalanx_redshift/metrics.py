"""Judge redshifts by the errors that astronomers use.

Notation: z is the middle of a sample's true class, z' that of its predicted class, and
d = (z' - z) / (1 + z) the error.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phalanx.data.metrics import Predictions
from phalanx.spec.data import MetricKind

OUTLIER, CATASTROPHE = 0.001, 0.15


def _kind(name: str) -> MetricKind:
    return MetricKind(name, function=f"phalanx_redshift.metrics:{name}", needs_scale=True)


NMAD, OUTLIERS, CATASTROPHIC = map(_kind, ("nmad", "outliers", "catastrophic"))


def errors(predictions: Predictions) -> npt.NDArray[np.float64]:
    """Return d of every sample."""
    assert predictions.scale is not None
    low, width = predictions.scale.low, predictions.scale.width
    actual = low + (predictions.actual.astype(np.float64) + 0.5) * width
    found = low + (predictions.predicted.astype(np.float64) + 0.5) * width
    return np.asarray((found - actual) / (1 + actual), dtype=np.float64)


def nmad(predictions: Predictions) -> float:
    """Compute the normalised median absolute deviation: 1.4826 median |d - median d|."""
    found = errors(predictions)
    return 1.4826 * float(np.median(np.abs(found - np.median(found))))


def outliers(predictions: Predictions) -> float:
    """Compute the share of samples with |d| above 0.001."""
    return float(np.mean(np.abs(errors(predictions)) > OUTLIER))


def catastrophic(predictions: Predictions) -> float:
    """Compute the share of samples with |d| above 0.15."""
    return float(np.mean(np.abs(errors(predictions)) > CATASTROPHE))
