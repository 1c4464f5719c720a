"""Make the chapter `Learning curves`: accuracy and loss, training and validation, with ranges."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.cells import Cell
from phalanx.report.charts import MAX_POINTS, Rows, axis, epoch_axis, lines, shorten
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Table,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.measures import MEASURES, Measure, curve_of, spread
from phalanx.report.scope import Scope

_TABLE_EPOCHS = 8
_MAX_LINES = 4
_MAX_BATCHES = 4


def learning(scope: Scope) -> Section | None:
    """Draw for every task the quality by epoch and second, and all other curves by epoch."""
    blocks: list[Block] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        quality = _first_measured(cells, ("val_accuracy", "train_accuracy", "val_loss"))
        if quality is None:
            continue
        blocks.append(_figure(f"curves-{index}", task, cells, quality, scope))
        blocks.append(_table(f"curves-table-{index}", task, cells, quality))
    return Section(id="learning-curves", title="Learning curves", blocks=blocks) if blocks else None


def _first_measured(cells: Sequence[Cell], keys: Sequence[str]) -> Measure | None:
    """Choose the first measure that makes a curve in every cell, else the first with any value.

    Without validation samples, or with `evaluate: end`, validation has no value or a single one:
    such a chart would be empty while training accuracy has a point for every epoch.
    """
    finished = [cell for cell in cells if cell.finished]
    points = {key: [len(curve_of(cell, key)) for cell in finished] for key in keys}
    curves = [key for key in keys if points[key] and min(points[key]) > 1]
    known = curves or [key for key in keys if any(points[key])]
    return MEASURES[known[0]] if known else None


def _figure(id: str, task: str, cells: Sequence[Cell], quality: Measure, scope: Scope) -> Figure:
    panels = [
        panel for heading, own in _groups(cells) for panel in _panels(heading, own, quality, scope)
    ]
    of_test = any(cell.job["data"].get("validation") == "test" for cell in cells)
    caption = (
        f"{task}: {quality.title} and what else was measured at the end of every epoch. Lines are "
        "means over seeds, bands reach from the lowest run to the highest; in charts by training "
        "time a point lies at the mean training time of its epoch's end."
        + (" Validation is measured on the test part (data.validation: test)." if of_test else "")
    )
    return Figure(id=id, caption=caption, panels=panels, legend=scope.swatches(cells))


def _groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Group cells by batch where the lines of one chart would hide each other, else not."""
    batches = list(dict.fromkeys(cell.batch for cell in cells))
    methods = {cell.method for cell in cells}
    if len(cells) <= _MAX_LINES or len(methods) == 1 or not 2 <= len(batches) <= _MAX_BATCHES:
        return [("", list(cells))]
    return [(f"Batch {one}: ", [cell for cell in cells if cell.batch == one]) for one in batches]


def _panels(heading: str, cells: Sequence[Cell], quality: Measure, scope: Scope) -> list[Panel]:
    styles = {cell.label: scope.styles[cell.id] for cell in cells}
    loss, accuracy = MEASURES["train_loss"], MEASURES["train_accuracy"]
    others = [one for one in (accuracy, MEASURES["val_loss"], loss) if one != quality]
    rows = {one.key: _rows(cells, one) for one in (quality, *others)}
    epochs = epoch_axis(rows[quality.key])
    seconds = axis("seconds", "training time, s", scale={"zero": True})
    counted = {
        "updates": axis("updates", "updates", scale={"zero": True}),
        "samples seen": axis("samples", "samples seen", scale={"zero": True}),
    }
    charts = [
        (quality, epochs, f"{quality.title} by epoch"),
        (quality, seconds, f"{quality.title} by training time"),
        *((one, epochs, f"{one.title} by epoch") for one in others if _is_curve(rows[one.key])),
    ]
    if _epochs_differ(cells) and rows[accuracy.key]:
        charts += [(quality, x, f"{quality.title} by {words}") for words, x in counted.items()]
        charts += [
            (one, x, f"{one.title} by {words}")
            for one in (accuracy, loss)
            for words, x in {**counted, "training time": seconds}.items()
            if one != quality
        ]
    panels = []
    for measure, x, words in charts:
        title = f"{heading}{words}"
        y = axis("value", f"{measure.title}, {measure.unit}".removesuffix(", "))
        choices = [epochs, *counted.values(), seconds]
        spec = lines(rows[measure.key], styles, x, y, band=True, choices=choices)
        panels.append(Panel(title=title[0].upper() + title[1:], spec=spec))
    return panels


def _is_curve(rows: Rows) -> bool:
    return len({row["epoch"] for row in rows}) > 1


def _epochs_differ(cells: Sequence[Cell]) -> bool:
    counts = {
        (run.epochs[0].samples, run.epochs[0].updates)
        for cell in cells
        for run in cell.finished
        if run.epochs and cell.job["data"].get("distribution")
    }
    return len(counts) > 1


def _rows(cells: Sequence[Cell], measure: Measure) -> Rows:
    return [
        {
            "series": cell.label,
            "epoch": point.epoch,
            "seconds": shorten(point.train_s),
            "updates": shorten(point.updates),
            "samples": shorten(point.samples),
            "value": shorten(point.mean * measure.scale),
            "low": shorten(point.low * measure.scale),
            "high": shorten(point.high * measure.scale),
        }
        for cell in cells
        for point in curve_of(cell, measure.key, max_points=MAX_POINTS)
    ]


def _table(id: str, task: str, cells: Sequence[Cell], measure: Measure) -> Table:
    curves = [{p.epoch: p.mean for p in curve_of(cell, measure.key)} for cell in cells]
    shown = spread(sorted({epoch for curve in curves for epoch in curve}), _TABLE_EPOCHS)
    rows = [
        {
            label("cell"): text(cell.label),
            **{
                Column(f"epoch_{epoch}", f"epoch {epoch}", measure.unit): number(
                    curve.get(epoch), measure.digits or 4, scale=measure.scale
                )
                for epoch in shown
            },
        }
        for cell, curve in zip(cells, curves, strict=True)
    ]
    caption = f"{task}: mean {measure.title} over the runs of a cell after some of the epochs."
    return table_of(id, caption, rows)
