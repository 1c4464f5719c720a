"""Choose the pairs of cells to compare, and test each pair; pure.

Within a task: methods at the same batch, and batches of the same method. All tests of one measure
are adjusted together (Holm), so that a table of thirty pairs does not find differences by number
alone. Every pair passes the equivalence gate before its speeds are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean

import msgspec

from phalanx.report.cells import Cell
from phalanx.report.gate import GateResult, judge_equivalence
from phalanx.report.measures import contrast_cells, values_by_seed
from phalanx.report.scope import Scope
from phalanx.report.stats import Contrast, adjust_holm

MAX_PAIRS = 40
"""Per task; beyond that only the baseline and neighbouring batches are compared."""


class Pair(msgspec.Struct, kw_only=True):
    """Two cells of one task: first minus second, first over second."""

    first: Cell
    second: Cell
    gate: GateResult | None
    """None if there is no measure of quality."""
    quality: Contrast | None
    time: Contrast | None
    quality_p: float | None = None
    """Adjusted for all pairs of the report."""
    time_p: float | None = None

    @property
    def may_compare_speed(self) -> bool:
        """Whether speeds are shown: never for results that are known to differ."""
        return self.gate is not None and self.gate.verdict != "different"


def pair_cells(scope: Scope) -> list[Pair]:
    """Compare all pairs of the report, task by task."""
    pairs = [
        _pair(first, second, scope)
        for cells in scope.tasks.values()
        for second, first in _choose([cell for cell in cells if cell.finished], scope)
    ]
    quality = adjust_holm([pair.quality.p_value if pair.quality else None for pair in pairs])
    time = adjust_holm(
        [pair.time.p_value if pair.time and pair.may_compare_speed else None for pair in pairs]
    )
    for pair, quality_p, time_p in zip(pairs, quality, time, strict=True):
        pair.quality_p, pair.time_p = quality_p, time_p
    return pairs


def _choose(cells: Sequence[Cell], scope: Scope) -> list[tuple[Cell, Cell]]:
    methods = [
        (one, other)
        for one, other in combinations(cells, 2)
        if one.batch == other.batch and one.method != other.method
    ]
    batches = [
        (one, other)
        for one, other in combinations(cells, 2)
        if one.batch != other.batch and one.method == other.method
    ]
    if len(methods) + len(batches) > MAX_PAIRS:
        methods = [
            (other, cell)
            for cell in cells
            if (other := scope.baseline_of(cell)) is not None and other.finished
        ]
        batches = [
            pair
            for method in dict.fromkeys(cell.method for cell in cells)
            for own in [[cell for cell in cells if cell.method == method]]
            for pair in pairwise(own)
        ]
    return methods + batches


def _pair(first: Cell, second: Cell, scope: Scope) -> Pair:
    quality = scope.quality
    return Pair(
        first=first,
        second=second,
        gate=None if quality is None else _gate(first, second, quality.key, scope),
        quality=None if quality is None else contrast_cells(first, second, quality.key),
        time=contrast_cells(first, second, "train_s"),
    )


def _gate(first: Cell, second: Cell, key: str, scope: Scope) -> GateResult:
    planned = scope.material.study.gate if scope.material.study is not None else None
    key = planned.metric if planned is not None else key
    result = judge_equivalence(
        _one_per_seed(first, key),
        _one_per_seed(second, key),
        tolerance=planned.tolerance if planned is not None else scope.settings.accuracy_loss,
        metric=key,
        confidence=planned.confidence if planned is not None else scope.confidence,
    )
    return msgspec.structs.replace(result, cell=first.id, baseline=second.id)


def _one_per_seed(cell: Cell, key: str) -> dict[int, float]:
    """Return values by seed; runs of one seed are no independent samples, so their mean."""
    return {seed: fmean(values) for seed, values in values_by_seed(cell, key).items()}
