"""Make the chapter `Errors of redshift`: metrics by cell, and the errors of the best one."""

from __future__ import annotations

from collections import Counter

from phalanx.records.predictions import PartPredictions
from phalanx.report.charts import Rows, Spec, histogram
from phalanx.report.document import Block, Figure, Panel, Section, Text
from phalanx.report.measures import Measure
from phalanx.report.parts.metrics import best_predictions, measures_table
from phalanx.report.scope import Scope, Style
from phalanx_redshift.metrics import CATASTROPHE, OUTLIER

_STEPS = (0.0, 0.0005, OUTLIER, 0.002, 0.005, 0.01, 0.05, CATASTROPHE)
_MEASURES = {
    "nmad": Measure("nmad", "NMAD", "10⁻³", 1000, 3),
    "outliers": Measure("outliers", "outliers", "%", 100, 2),
    "catastrophic": Measure("catastrophic", "catastrophic", "%", 100, 2),
}


def show_errors(scope: Scope) -> Section | None:
    """Tabulate the metrics and draw the errors of each task; None without redshifts."""
    blocks: list[Block] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        found = best_predictions(cells)
        if found is None or found[1].scale is None:
            continue
        best, verdicts = found
        panel = Panel(title=f"Errors of {verdicts.scale_name}", spec=_histogram(verdicts))
        caption = f"{task}: errors of the typical run of {best.phrase} on the test samples."
        blocks += [
            measures_table(f"redshift-{index}", task, cells, _MEASURES),
            Figure(id=f"errors-{index}", caption=caption, panels=[panel]),
        ]
    if not blocks:
        return None
    explained = (
        "d = (z' - z) / (1 + z), with z the middle of the true class and z' that of the predicted "
        "one. NMAD is 1.4826 times the median of |d - median d|; outliers have |d| > 0.001, "
        "catastrophic ones |d| > 0.15."
    )
    blocks.insert(0, Text(lines=[explained]))
    return Section(id="redshift-errors", title="Errors of redshift", blocks=blocks)


def _histogram(verdicts: PartPredictions) -> Spec:
    assert verdicts.scale is not None
    low, width = verdicts.scale
    counts: Counter[int] = Counter()
    for actual, predicted in zip(verdicts.actual, verdicts.predicted, strict=True):
        error = abs(predicted - actual) * width / (1 + low + (actual + 0.5) * width)
        counts[sum(error > step for step in _STEPS)] += 1
    total = max(1, len(verdicts.actual))
    labels = ["0", *(f"to {step:g}" for step in _STEPS[1:]), f"over {_STEPS[-1]:g}"]
    rows: Rows = [
        {
            "series": "test",
            "bin": label,
            "rank": rank,
            "share": round(100 * counts[rank] / total, 3),
        }
        for rank, label in enumerate(labels)
    ]
    return histogram(rows, {"test": Style("#0072b2", (), "circle")}, "|d|", "share of samples, %")
