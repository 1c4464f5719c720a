"""Make the chapter `How the figures are made`: definitions of all figures."""

from __future__ import annotations

from phalanx.report.document import Section, Text
from phalanx.report.scope import Scope


def notes(scope: Scope) -> Section:
    """Define every measure and statistic of the report."""
    loss = f"{scope.settings.accuracy_loss:g}"
    level = f"{100 * scope.confidence:g} %"
    lines = [
        "Training time is the time in training steps over all attempts, without start-up, "
        "evaluation and checkpoints between epochs; elapsed is from starting the processes until "
        "all have ended. Speed is samples over training time.",
        "Batch sizes: the global batch is over all workers, the worker batch that of one.",
        f"± is half the {level} t interval of the mean over runs with different seeds; n = 1 has "
        "none. Outliers are flagged and counted all the same; runs that did not finish are listed "
        "and not counted.",
        "Differences: paired t test where both cells have the same seeds, else Welch's test; "
        "p-values adjusted after Holm over all pairs. Ratios of means have Fieller's interval.",
        "Equivalence: two one-sided tests (TOST) against the stated tolerance.",
        "Pareto front: cells that no other cell beats in mean time and mean quality.",
        f"Recommendation: among cells whose mean quality is at most {loss} below "
        f"the best, the one with the least {scope.saved.title}.",
        "Every figure comes from the run directories; made again from the same records, this "
        "report has the same bytes.",
    ]
    return Section(
        id="notes", title="How the figures are made", blocks=[Text(lines=lines, kind="list")]
    )
