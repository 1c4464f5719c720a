"""Judge a network by the class that it knows least."""

from __future__ import annotations

from phalanx.data.metrics import Predictions, per_class_accuracy


def worst_class(predictions: Predictions) -> float:
    """Return the lowest accuracy of any class that occurs."""
    return min(one for one in per_class_accuracy(predictions.confusion()) if one is not None)
