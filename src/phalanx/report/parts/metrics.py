"""Make the chapter `Metrics and predictions`: metrics, accuracy by class and confusion.

Only for data with metrics other than accuracy. Tables are means over seeds; figures show the
typical run of the cell with the best test accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from phalanx.records.predictions import PartPredictions
from phalanx.report.cells import Cell
from phalanx.report.charts import Rows, Spec, heat_map
from phalanx.report.document import Block, Column, Figure, Panel, Section, Table, Text, number, text
from phalanx.report.measures import Measure, metrics_of
from phalanx.report.parts.results import add_estimates
from phalanx.report.scope import Scope

_MOST_CLASSES = 24
_MOST_CELLS = 12

_ABOUT_CLASSES = (
    "kappa: agreement beyond chance; class mean: accuracy averaged over classes; within one: "
    "off by at most one class."
)
_ABOUT_VALUES = (
    "Errors are those of the test part, in the unit of the targets. R²: the share of the targets' "
    "variance that the predictions explain; 1 at best, 0 for the mean of the targets."
)


def show_metrics(scope: Scope) -> Section | None:
    """Tabulate metrics and draw predictions; None if no data has metrics other than accuracy."""
    blocks: list[Block] = []
    explained: dict[str, None] = {}
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        measures = metrics_of(cells)
        if measures:
            explained |= dict.fromkeys([_ABOUT_VALUES if "rmse" in measures else _ABOUT_CLASSES])
            blocks.append(measures_table(f"metrics-{index}", task, cells, measures))
            blocks += _predictions(index, task, cells)
    if not blocks:
        return None
    blocks.insert(0, Text(lines=list(explained)))
    return Section(id="metrics", title="Metrics and predictions", blocks=blocks)


def measures_table(
    id: str, task: str, cells: Sequence[Cell], measures: Mapping[str, Measure]
) -> Table:
    """Tabulate the mean of each measure by cell."""
    table = Table(
        id=id,
        caption=f"{task}: measures of the test part.",
        columns=[Column("cell", "cell", is_text=True)],
        rows=[[text(cell.label)] for cell in cells],
    )
    add_estimates(table, cells, measures.values())
    return table


def best_predictions(cells: Sequence[Cell]) -> tuple[Cell, PartPredictions] | None:
    """Return the cell whose typical run predicts best, and its predictions; None without any."""
    return max(_typical(cells), key=lambda one: _accuracy(one[1]), default=None)


def _typical(cells: Sequence[Cell]) -> list[tuple[Cell, PartPredictions]]:
    typical = [(cell, cell.typical.verdicts if cell.typical else None) for cell in cells]
    return [(cell, verdicts) for cell, verdicts in typical if verdicts is not None]


def _predictions(index: int, task: str, cells: Sequence[Cell]) -> list[Block]:
    found = best_predictions(cells)
    if found is None or found[1].num_classes > _MOST_CLASSES:
        return []
    best, verdicts = found
    panels = [Panel(title="Confusion", spec=_confusion(verdicts))]
    caption = f"{task}: predictions of the typical run of {best.phrase} on the test samples."
    return [
        _class_table(f"metrics-classes-{index}", task, _typical(cells)[:_MOST_CELLS]),
        Figure(id=f"predictions-{index}", caption=caption, panels=panels),
    ]


def _accuracy(verdicts: PartPredictions) -> float:
    pairs = zip(verdicts.actual, verdicts.predicted, strict=True)
    return sum(a == b for a, b in pairs) / max(1, len(verdicts.actual))


def _class_table(id: str, task: str, known: Sequence[tuple[Cell, PartPredictions]]) -> Table:
    one = known[0][1]
    samples = Counter(one.actual)
    columns = [Column("class", "class", is_text=True), Column("samples", "samples")]
    columns += [Column(f"cell_{n}", cell.label, "%") for n, (cell, _) in enumerate(known, start=1)]
    by_cell = [verdicts.accuracy_by_class() for _, verdicts in known]
    rows = [
        [
            text(one.name_of(label)),
            number(samples[label], 0),
            *(number(accuracies[label], 1, scale=100) for accuracies in by_cell),
        ]
        for label in range(one.num_classes)
    ]
    caption = f"{task}: accuracy of each class in the typical run of each cell."
    return Table(id=id, caption=caption, columns=columns, rows=rows)


def _confusion(verdicts: PartPredictions) -> Spec:
    names = [verdicts.name_of(label) for label in range(verdicts.num_classes)]
    rows: Rows = []
    for actual, row in enumerate(verdicts.confusion()):
        total = max(1, sum(row))
        rows += [
            {"x": names[said], "y": names[actual], "value": round(count / total, 4)}
            for said, count in enumerate(row[: len(names)])
        ]
    return heat_map(rows, names, x_title="predicted", y_title="true")
