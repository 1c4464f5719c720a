"""The numbers by which a study decides, read from the summaries of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.study import StudyDir, Trial
from phalanx.study.stopping import Key


def metric_values(study: StudyDir, trials: Sequence[Trial], metric: str | None) -> dict[Key, float]:
    """A metric of every finished trial whose summary has it; nothing if no metric is asked for."""
    found: dict[Key, float] = {}
    if metric is None:
        return found
    for trial in trials:
        if trial.state != "finished" or trial.run is None:
            continue
        summary = study.run(trial).read_summary()
        value = getattr(summary, metric, None)
        if isinstance(value, int | float):
            found[trial.cell, trial.repeat] = float(value)
    return found


def values_by_seed(study: StudyDir, metric: str) -> dict[str, dict[int, float]]:
    """A metric of every finished trial, by cell and seed, as the gate takes it."""
    trials = study.trials()
    values = metric_values(study, trials, metric)
    by_cell: dict[str, dict[int, float]] = {}
    for trial in trials:
        value = values.get((trial.cell, trial.repeat))
        if value is not None:
            by_cell.setdefault(trial.cell, {})[trial.seed] = value
    return by_cell
