"""Chapter `Learning curves`: quality and loss by epoch and by second, with the range over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.cells import Cell
from phalanx.report.charts import MAX_POINTS, Rows, Spec, axis, lines, shorten
from phalanx.report.curves import CurvePoint, curve_of, spread
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Table,
    Value,
    number,
    text,
)
from phalanx.report.measures import MEASURES, Measure
from phalanx.report.scope import Scope

_TABLE_EPOCHS = 8


def learning(scope: Scope) -> Section | None:
    """For every task: accuracy by epoch and by second, loss by epoch, and a table."""
    blocks: list[Block] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        quality = _first_measured(cells, ("val_accuracy", "train_accuracy", "val_loss"))
        if quality is None:
            continue
        blocks.append(_figure(f"curves-{index}", task, cells, quality, scope))
        blocks.append(_table(f"curves-table-{index}", task, cells, quality))
    return Section(id="learning-curves", title="Learning curves", blocks=blocks) if blocks else None


def _first_measured(cells: Sequence[Cell], keys: Sequence[str]) -> Measure | None:
    return next((MEASURES[k] for k in keys if any(curve_of(cell, k) for cell in cells)), None)


def _figure(id: str, task: str, cells: Sequence[Cell], quality: Measure, scope: Scope) -> Figure:
    styles = {cell.label: scope.styles[cell.id] for cell in cells}
    epochs = {"axis": {"tickMinStep": 1, "format": "d"}}
    title = f"{quality.title}, {quality.unit}" if quality.unit else quality.title
    loss = MEASURES["train_loss"]
    panels = []
    for measure, x, heading in (
        (quality, axis("epoch", "epoch", **epochs), "by epoch"),
        (quality, axis("seconds", "training time, s", scale={"zero": True}), "by second"),
        (loss, axis("epoch", "epoch", **epochs), "loss by epoch"),
    ):
        rows = _rows(cells, measure)
        spec: Spec = lines(rows, styles, x, axis("value", _title(measure)), band=True)
        panels.append(Panel(title=f"{measure.title} {heading.removeprefix('loss ')}", spec=spec))
    caption = (
        f"{task}: {title} and training loss at the end of every epoch. Lines are means over seeds, "
        "bands reach from the lowest run to the highest; in the chart by second a point lies at "
        "the mean training time of its epoch's end."
    )
    return Figure(id=id, caption=caption, panels=panels, legend=scope.swatches(cells))


def _title(measure: Measure) -> str:
    return f"{measure.title}, {measure.unit}" if measure.unit else measure.title


def _rows(cells: Sequence[Cell], measure: Measure) -> Rows:
    return [
        {
            "series": cell.label,
            "epoch": point.epoch,
            "seconds": shorten(point.train_s),
            "value": shorten(point.mean * measure.scale),
            "low": shorten(point.low * measure.scale),
            "high": shorten(point.high * measure.scale),
        }
        for cell in cells
        for point in curve_of(cell, measure.key, max_points=MAX_POINTS)
    ]


def _table(id: str, task: str, cells: Sequence[Cell], measure: Measure) -> Table:
    curves = {cell.id: {p.epoch: p for p in curve_of(cell, measure.key)} for cell in cells}
    every = sorted({epoch for curve in curves.values() for epoch in curve})
    shown = spread(every, _TABLE_EPOCHS)
    columns = [
        Column("cell", "cell", is_text=True),
        *(Column(f"epoch_{epoch}", f"epoch {epoch}", measure.unit) for epoch in shown),
    ]
    digits = measure.digits or 4
    rows = [
        [text(cell.label), *(_entry(curves[cell.id].get(e), digits, measure.scale) for e in shown)]
        for cell in cells
    ]
    caption = f"{task}: mean {measure.title} over the runs of a cell after some of the epochs."
    return Table(id=id, caption=caption, columns=columns, rows=rows)


def _entry(point: CurvePoint | None, digits: int, scale: float) -> Value:
    return number(point.mean if point else None, digits, scale=scale)
