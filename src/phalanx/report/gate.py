"""Test whether two cells reach equivalent results, before their speeds are compared.

A test that finds no difference proves nothing: with few runs it never finds one. The question is
turned round by two one-sided tests (TOST: Schuirmann 1987, J. Pharmacokin. Biopharm. 15:657-680).
With d the mean difference and T the tolerance, equality within T is shown at error rate a if both
d ≤ -T and d ≥ T are rejected at a, which is the same as the 1 - 2a interval of d lying inside
[-T, T]. An interval that lies wholly outside shows the opposite; any other leaves it open, and more
runs would narrow it. Pure; used by `study show` and by the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from phalanx.records.study import PlannedCell, PlannedGate, StudyManifest
from phalanx.report.stats import contrast_by_seed

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
