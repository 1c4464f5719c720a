"""Read the metrics that a study decides by from the summaries of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.study import StudyDir, Trial, on_other_machines
from phalanx.study.stopping import Key


def metric_values(study: StudyDir, trials: Sequence[Trial], metric: str | None) -> dict[Key, float]:
    """Return a metric of every finished trial whose summary has it; empty without a metric."""
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
    """Return a metric of the trials that can be compared, by cell and seed, for the gate."""
    journal = study.trials()
    others = on_other_machines(journal)
    trials = [trial for trial in journal if trial not in others]
    values = metric_values(study, trials, metric)
    by_cell: dict[str, dict[int, float]] = {}
    for trial in trials:
        value = values.get((trial.cell, trial.repeat))
        if value is not None:
            by_cell.setdefault(trial.cell, {})[trial.seed] = value
    return by_cell
