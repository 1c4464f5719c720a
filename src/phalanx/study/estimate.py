"""Estimate the progress of a study and its remaining time; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.records.study import StudyManifest
from phalanx.study.stopping import Key, Standing, expected_repeats, trial_estimate_s


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


def look_ahead(
    manifest: StudyManifest, standing: Standing, *, running: Mapping[Key, float], lanes: int
) -> StudyEstimate:
    """Estimate the rest from the medians of finished trials.

    Args:
        manifest: The plan.
        standing: Progress of every cell.
        running: Running trials with their elapsed seconds.
        lanes: Number of trials at the same time.
    """
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
    left = left_s / max(1, lanes) if known else None
    if left is not None and manifest.budget_s is not None:
        left = min(left, max(0.0, manifest.budget_s - standing.spent_s))
    return StudyEstimate(ended=ended, failed=failed, expected=expected, left_s=left)
