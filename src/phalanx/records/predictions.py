"""Define `predictions.json` of a run directory: the predicted class of every test sample.

Written once, at the end, for data with metrics other than accuracy. Reports derive confusion,
accuracy by class and maps from it.
"""

from __future__ import annotations

import msgspec


class PartPredictions(msgspec.Struct, kw_only=True):
    """True and predicted class of each sample of a part, in the order of the part."""

    part: str
    num_classes: int
    class_names: list[str] = []
    scale: tuple[float, float] | None = None
    """Where classes are ranges of a number: where the first begins, and their width."""
    scale_name: str = ""
    grid: tuple[int, int] | None = None
    """Rows and columns, if the samples lie on a grid, in its order."""
    actual: list[int]
    predicted: list[int]

    def name_of(self, label: int) -> str:
        """Return the name of a class."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def confusion(self) -> list[list[int]]:
        """Count samples by true class (rows) and predicted class; last column: none of these."""
        size = self.num_classes
        table = [[0] * (size + 1) for _ in range(size)]
        for actual, predicted in zip(self.actual, self.predicted, strict=True):
            table[actual][min(predicted, size)] += 1
        return table

    def accuracy_by_class(self) -> list[float | None]:
        """Return the accuracy within each true class; None for a class without samples."""
        totals, right = [0] * self.num_classes, [0] * self.num_classes
        for actual, predicted in zip(self.actual, self.predicted, strict=True):
            totals[actual] += 1
            right[actual] += actual == predicted
        return [one / total if total else None for one, total in zip(right, totals, strict=True)]
