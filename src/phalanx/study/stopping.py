"""Decide which trial is next and when to stop, and estimate the rest; pure: journal in.

Repeats are interleaved: every cell has its first run before any has its second, so that a temporary
disturbance of the machine affects all cells alike. A cell is repeated `min` times, then until the t
interval of its metric is narrow enough or `max` is reached. No trial is started that would probably
end beyond the budget.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from phalanx.records.study import PlannedRepeats, StudyManifest, Trial
from phalanx.report.stats import estimate

# A cell that has failed this often without ever finishing will fail again.
HOPELESS = 2

Key = tuple[str, int]
"""Cell and repeat."""


@dataclass(frozen=True)
class Planned:
    """A trial to run."""

    cell: str
    repeat: int
    seed: int


@dataclass
class CellState:
    """Progress of one cell."""

    attempted: set[int] = field(default_factory=set)
    """Repeats that ended or run."""
    ended: int = 0
    failed: int = 0
    values: list[float] = field(default_factory=list)
    """The stopping metric of finished trials that have it."""
    elapsed_s: list[float] = field(default_factory=list)
    """Of finished trials."""

    @property
    def is_hopeless(self) -> bool:
        """Whether the cell is abandoned after failures."""
        return self.failed >= HOPELESS and self.failed == self.ended


@dataclass(frozen=True)
class Standing:
    """Progress of all cells and time used: the input of `next_trial`."""

    cells: dict[str, CellState]
    spent_s: float

    @classmethod
    def of(
        cls,
        manifest: StudyManifest,
        trials: Sequence[Trial],
        values: Mapping[Key, float],
        *,
        running: Collection[Key] = (),
        spent_s: float = 0.0,
    ) -> Standing:
        """Combine journal and running trials; `values` is the stopping metric where known."""
        cells: dict[str, CellState] = defaultdict(CellState)
        for cell in manifest.cells:
            cells[cell.id] = CellState()
        for trial in trials:
            state = cells[trial.cell]
            state.attempted.add(trial.repeat)
            state.ended += 1
            if trial.state == "finished":
                state.elapsed_s.append(trial.elapsed_s)
                if (value := values.get((trial.cell, trial.repeat))) is not None:
                    state.values.append(value)
            else:
                state.failed += 1
        for name, repeat in running:
            cells[name].attempted.add(repeat)
        return cls(dict(cells), spent_s)


def next_trial(manifest: StudyManifest, standing: Standing) -> Planned | None:
    """Return the trial to start now; None if all cells are done or the budget would be exceeded."""
    candidates = []
    for order, cell in enumerate(manifest.cells):
        state = standing.cells[cell.id]
        repeat = _next_repeat(state)
        if repeat < wanted_repeats(state, manifest.repeats_of(cell.id)):
            candidates.append((repeat, order, cell.id))
    for repeat, _, name in sorted(candidates):
        if _fits_budget(manifest, standing, name):
            return Planned(cell=name, repeat=repeat, seed=manifest.seeds[repeat])
    return None


def wanted_repeats(state: CellState, repeats: PlannedRepeats) -> int:
    """Return the number of repeats that the cell needs, by the present values."""
    if state.is_hopeless:
        return state.ended
    if repeats.half_width is None or len(state.attempted) < repeats.min:
        return repeats.min
    if is_narrow(state.values, repeats):
        return state.ended
    # One at a time: each run may be the one that makes the interval narrow enough.
    return min(repeats.max, state.ended + 1)


def is_narrow(values: Sequence[float], repeats: PlannedRepeats) -> bool:
    """Tell whether the interval of the mean is at most as wide as requested."""
    half = interval_half_width(values, repeats)
    return half is not None and repeats.half_width is not None and half <= repeats.half_width


def interval_half_width(values: Sequence[float], repeats: PlannedRepeats) -> float | None:
    """Return half the t interval of the mean, in the unit of `repeats`; None below two values.

    As a share of a mean of zero it is infinite, unless all values are zero.
    """
    if len(values) < 2:
        return None
    found = estimate(values, confidence=repeats.confidence)
    assert found.half_width is not None
    if not repeats.relative:
        return found.half_width
    if found.mean == 0:
        return 0.0 if found.half_width == 0 else math.inf
    return found.half_width / abs(found.mean)


def expected_repeats(state: CellState, repeats: PlannedRepeats) -> int:
    """Estimate the final number of repeats of a cell.

    The half-width falls with the square root of the number of values, so n values with half-width
    h need about n (h / w)² for a width of w.
    """
    wanted = wanted_repeats(state, repeats)
    if repeats.half_width is None or wanted <= state.ended or state.is_hopeless:
        return max(wanted, state.ended)
    half = interval_half_width(state.values, repeats)
    if half is None or not math.isfinite(half):
        return wanted
    needed = math.ceil(len(state.values) * (half / repeats.half_width) ** 2)
    return max(wanted, min(repeats.max, needed))


def trial_estimate_s(standing: Standing, cell: str) -> float | None:
    """Estimate the duration of a trial: the median of its cell, else of all cells."""
    own = standing.cells[cell].elapsed_s
    if own:
        return median(own)
    known = [median(state.elapsed_s) for state in standing.cells.values() if state.elapsed_s]
    return median(known) if known else None


def used_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of time spans, each from its start to its end.

    Time between two sessions of a study is in none of them and costs no budget.
    """
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _next_repeat(state: CellState) -> int:
    return next(
        number for number in range(len(state.attempted) + 1) if number not in state.attempted
    )


def _fits_budget(manifest: StudyManifest, standing: Standing, cell: str) -> bool:
    if manifest.budget_s is None:
        return True
    takes = trial_estimate_s(standing, cell) or 0.0
    # Without this, a budget below the length of one trial would end a study before its first trial.
    return standing.spent_s + takes <= manifest.budget_s and standing.spent_s < manifest.budget_s


@dataclass(frozen=True)
class StudyEstimate:
    """Progress of a study at one moment."""

    ended: int
    """Trials in the journal."""
    failed: int
    expected: int
    """Expected total number of trials."""
    left_s: float | None
    """None while no trial has finished."""


def estimate_rest(
    manifest: StudyManifest, standing: Standing, *, running: Mapping[Key, float], core_sets: int
) -> StudyEstimate:
    """Estimate the rest from the medians of finished trials; `running` holds elapsed seconds."""
    ended = sum(state.ended for state in standing.cells.values())
    failed = sum(state.failed for state in standing.cells.values())
    expected, left_s, known = 0, 0.0, False
    for name, state in standing.cells.items():
        total = max(expected_repeats(state, manifest.repeats_of(name)), len(state.attempted))
        expected += total
        each = trial_estimate_s(standing, name)
        if each is None:
            continue
        known = True
        left_s += each * (total - len(state.attempted))
        left_s += sum(max(0.0, each - for_s) for key, for_s in running.items() if key[0] == name)
    left = left_s / max(1, core_sets) if known else None
    if left is not None and manifest.budget_s is not None:
        left = min(left, max(0.0, manifest.budget_s - standing.spent_s))
    return StudyEstimate(ended=ended, failed=failed, expected=expected, left_s=left)
