"""Test whether two cells reach equivalent results, before their speeds are compared.

A test that finds no difference proves nothing: with few runs it never finds one. The question is
turned round by two one-sided tests (TOST: Schuirmann 1987, J. Pharmacokin. Biopharm. 15:657-680).
With d the mean difference and T the tolerance, equality within T is shown at error rate a if both
d ≤ -T and d ≥ T are rejected at a, which is the same as the 1 - 2a interval of d lying inside
[-T, T]. An interval that lies wholly outside shows the opposite; any other leaves it open, and more
runs would narrow it. Pure; used by `study show` and by the report.

A report compares, within a task, methods at the same batch and batches of the same method. All
tests of one measure in a study, or in a task of loose runs, are adjusted together (Holm), so that a
table of thirty pairs does not find differences by number alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean
from typing import Literal

import msgspec

from phalanx.records.study import PlannedCell, PlannedGate, StudyManifest
from phalanx.report.cells import Cell
from phalanx.report.measures import contrast_cells, values_by_seed
from phalanx.report.scope import Scope
from phalanx.report.stats import Contrast, adjust_holm, contrast_by_seed

Verdict = Literal["equivalent", "different", "undecided"]


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the equivalence test of one cell against its baseline."""

    verdict: Verdict
    metric: str
    tolerance: float
    difference: float | None
    """Mean of the cell minus mean of the baseline; None if one of them has no run."""
    low: float | None
    """The interval that has to lie within the tolerance; None with fewer than two runs."""
    high: float | None
    level: float
    """Coverage of the interval, 1 - 2a: 0.90 for a confidence of 0.95."""
    num_runs: tuple[int, int]
    """Of the cell and of the baseline; under pairing by seed, the pairs twice."""
    paired: bool
    cell: str = ""
    baseline: str = ""

    @property
    def is_open(self) -> bool:
        """Whether speeds may be compared."""
        return self.verdict == "equivalent"


def judge_equivalence(
    values: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    tolerance: float,
    metric: str = "",
    confidence: float = 0.95,
) -> GateResult:
    """Test whether two sets of runs are equivalent within a tolerance.

    Args:
        values: The metric of the cell's runs by seed.
        baseline: The same of the baseline's; paired by seed where both have the same seeds.
        tolerance: The largest difference that counts as none, in the metric's unit.
        metric: What is compared, for the record.
        confidence: One minus the error rate of saying `equivalent` of cells that are not.
    """
    if not tolerance > 0:
        raise ValueError(f"a tolerance is above 0, not {tolerance}")
    level = 2 * confidence - 1
    found = None
    if values and baseline:
        found = contrast_by_seed(
            {seed: [value] for seed, value in values.items()},
            {seed: [value] for seed, value in baseline.items()},
            confidence=level,
        )
    low, high = (found.low, found.high) if found else (None, None)
    return GateResult(
        verdict=_verdict(low, high, tolerance),
        metric=metric,
        tolerance=tolerance,
        difference=found.difference if found else None,
        low=low,
        high=high,
        level=level,
        num_runs=found.n if found else (len(values), len(baseline)),
        paired=found is not None and found.method == "paired",
    )


def judge_study(
    manifest: StudyManifest, values: Mapping[str, Mapping[int, float]]
) -> list[GateResult]:
    """Test every cell against its baseline, in the order of the cells.

    Args:
        manifest: The plan; without a gate there are no results.
        values: The gate's metric by cell and seed.
    """
    gate = manifest.gate
    if gate is None:
        return []
    results = []
    for cell in manifest.cells:
        other = baseline_of(cell, manifest, gate)
        if other is None:
            continue
        result = judge_equivalence(
            values.get(cell.id, {}),
            values.get(other.id, {}),
            tolerance=gate.tolerance,
            metric=gate.metric,
            confidence=gate.confidence,
        )
        results.append(msgspec.structs.replace(result, cell=cell.id, baseline=other.id))
    return results


def baseline_of(
    cell: PlannedCell, manifest: StudyManifest, gate: PlannedGate
) -> PlannedCell | None:
    """Return the cell that differs in the gate's axis only; None for a baseline."""
    if cell.settings[gate.axis] == gate.baseline:
        return None
    wanted = cell.settings | {gate.axis: gate.baseline}
    return next((other for other in manifest.cells if other.settings == wanted), None)


def _verdict(low: float | None, high: float | None, tolerance: float) -> Verdict:
    if low is None or high is None:
        return "undecided"
    if -tolerance < low and high < tolerance:
        return "equivalent"
    if low > tolerance or high < -tolerance:
        return "different"
    return "undecided"


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
    # A study is one family of tests; runs that only lie together are one per task.
    families = [pairs] if scope.material.study is not None else _by_task(pairs)
    for family in families:
        quality = adjust_holm([pair.quality.p_value if pair.quality else None for pair in family])
        time = adjust_holm(
            [pair.time.p_value if pair.time and pair.may_compare_speed else None for pair in family]
        )
        for pair, quality_p, time_p in zip(family, quality, time, strict=True):
            pair.quality_p, pair.time_p = quality_p, time_p
    return pairs


def _by_task(pairs: Sequence[Pair]) -> list[list[Pair]]:
    tasks: dict[str, list[Pair]] = {}
    for pair in pairs:
        tasks.setdefault(pair.first.task, []).append(pair)
    return list(tasks.values())


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
    quality = scope.qualities[first.task]
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
