"""Make the chapter `Metrics and predictions`: metrics, accuracy by class, confusion and maps.

Only for data with metrics other than accuracy. Tables are means over seeds; figures show the
typical run of the cell with the best test accuracy, as a map cannot be averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from phalanx.records.predictions import PartPredictions
from phalanx.report.cells import Cell
from phalanx.report.charts import Rows, Spec, grid_of_classes, heat_map, histogram
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Swatch,
    Table,
    Text,
    Value,
    number,
    text,
)
from phalanx.report.measures import Measure, estimate_cell, metrics_of
from phalanx.report.parts.results import estimate_columns, estimate_values
from phalanx.report.scope import Scope, Style

_MOST_CLASSES = 24
_MOST_CELLS = 12
CLASS_COLOURS = (
    *("#4477aa", "#c8a165", "#66c35e", "#b8b03a", "#00a08a", "#2e7d32"),
    *("#0b4f2a", "#e6c300", "#444444", "#b0b0b0", "#cc6677", "#882255"),
    *("#8dd3c7", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69"),
    *("#fccde5", "#bc80bd", "#ccebc5", "#ffed6f", "#999933", "#332288"),
)
_ERROR_STEPS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.15)

_ABOUT_CLASSES = (
    "kappa: agreement beyond chance; class mean: accuracy averaged over classes; within one: "
    "off by at most one class.",
    "For classes that are ranges of a number z: d = (z' - z) / (1 + z), with z the middle of "
    "the true class and z' that of the predicted one. NMAD is 1.4826 times the median of "
    "|d - median d|; outliers have |d| > 0.001, catastrophic ones |d| > 0.15.",
)
_ABOUT_VALUES = (
    "Errors are those of the test part, in the unit of the targets. R²: the share of the targets' "
    "variance that the predictions explain; 1 at best, 0 for the mean of the targets.",
)


def show_metrics(scope: Scope) -> Section | None:
    """Tabulate metrics and draw predictions; None if no data has metrics other than accuracy."""
    blocks: list[Block] = []
    explained: dict[str, None] = {}
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        measures = metrics_of(cells)
        if not measures:
            continue
        explained |= dict.fromkeys(_ABOUT_VALUES if "rmse" in measures else _ABOUT_CLASSES)
        blocks.append(_measures_table(f"metrics-{index}", task, cells, measures))
        blocks += _pictures(index, task, cells)
    if not blocks:
        return None
    return Section(
        id="metrics", title="Metrics and predictions", blocks=[Text(lines=list(explained)), *blocks]
    )


def _measures_table(
    id: str, task: str, cells: Sequence[Cell], measures: Mapping[str, Measure]
) -> Table:
    columns = [Column("cell", "cell", is_text=True)]
    rows: list[list[Value]] = [[text(cell.label)] for cell in cells]
    for key, measure in measures.items():
        columns += estimate_columns(measure)
        found = [estimate_cell(cell, key) for cell in cells]
        for row, values in zip(rows, estimate_values(found, measure), strict=True):
            row += values
    return Table(id=id, caption=f"{task}: measures of the test part.", columns=columns, rows=rows)


def _pictures(index: int, task: str, cells: Sequence[Cell]) -> list[Block]:
    shown = [(cell, _verdicts(cell)) for cell in cells]
    known = [(cell, verdicts) for cell, verdicts in shown if verdicts is not None]
    if not known:
        return []
    best, verdicts = max(known, key=lambda one: _accuracy(one[1]))
    blocks: list[Block] = []
    few = verdicts.num_classes <= _MOST_CLASSES
    if few:
        blocks.append(_class_table(f"metrics-classes-{index}", task, known[:_MOST_CELLS]))
    panels = [Panel(title="Confusion", spec=_confusion(verdicts))] if few else []
    legend: list[Swatch] = []
    if verdicts.grid is not None and few:
        panels += _maps(verdicts)
        legend = [
            Swatch(label=verdicts.name_of(label), colour=_colour(label), is_field=True)
            for label in range(verdicts.num_classes)
        ]
    if verdicts.scale is not None:
        panels.append(Panel(title=f"Errors of {verdicts.scale_name}", spec=_errors(verdicts)))
    if panels:
        caption = f"{task}: predictions of the typical run of {best.phrase} on the test samples."
        blocks.append(
            Figure(id=f"predictions-{index}", caption=caption, panels=panels, legend=legend)
        )
    return blocks


def _verdicts(cell: Cell) -> PartPredictions | None:
    return cell.typical.verdicts if cell.typical is not None else None


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


def _maps(verdicts: PartPredictions) -> list[Panel]:
    assert verdicts.grid is not None
    width = verdicts.grid[1]
    names = [verdicts.name_of(label) for label in range(verdicts.num_classes)]
    colours = [_colour(label) for label in range(verdicts.num_classes)]
    panels = []
    for title, labels in (("Map: true", verdicts.actual), ("Map: predicted", verdicts.predicted)):
        rows: Rows = [
            {
                "x": place % width,
                "y": place // width,
                "class": names[label] if label < len(names) else "none",
            }
            for place, label in enumerate(labels)
        ]
        panels.append(Panel(title=title, spec=grid_of_classes(rows, names, colours)))
    return panels


def _errors(verdicts: PartPredictions) -> Spec:
    assert verdicts.scale is not None
    low, width = verdicts.scale
    counts: Counter[int] = Counter()
    for actual, predicted in zip(verdicts.actual, verdicts.predicted, strict=True):
        z = low + (actual + 0.5) * width
        error = abs(predicted - actual) * width / (1 + z)
        counts[sum(error > step for step in _ERROR_STEPS)] += 1
    total = max(1, len(verdicts.actual))
    labels = ["0", *(f"to {step:g}" for step in _ERROR_STEPS[1:]), f"over {_ERROR_STEPS[-1]:g}"]
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


def _colour(label: int) -> str:
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]
