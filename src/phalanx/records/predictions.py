"""What the finished model said about every test sample: `predictions.json` in a run directory.

Written once, at the end, for data that is judged by more than accuracy. Confusion, accuracy by
class and maps are made from it by whoever shows them.
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
        """What a class is called."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    def confusion(self) -> list[list[int]]:
        """Samples by true class (rows) and predicted class; beyond the last: no class of these."""
        size = self.num_classes
        table = [[0] * (size + 1) for _ in range(size)]
        for actual, predicted in zip(self.actual, self.predicted, strict=True):
            table[actual][min(predicted, size)] += 1
        return table

    def accuracy_by_class(self) -> list[float | None]:
        """Share of each true class that was called right; None: it has no samples."""
        totals, right = [0] * self.num_classes, [0] * self.num_classes
        for actual, predicted in zip(self.actual, self.predicted, strict=True):
            totals[actual] += 1
            right[actual] += actual == predicted
        return [one / total if total else None for one, total in zip(right, totals, strict=True)]
