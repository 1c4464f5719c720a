"""Draw the learning curves of a run: loss and metrics by epoch, training time or samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Literal, get_args

from phalanx.errors import SpecError, StoreError
from phalanx.records.events import Epoch, Evaluation
from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from phalanx.report.charts import MAX_POINTS, Rows, Spec, axis, epoch_axis, lines, shorten
from phalanx.report.document import Figure, Panel
from phalanx.report.measures import spread
from phalanx.report.page import to_png, to_svg
from phalanx.report.scope import Style

By = Literal["epoch", "time", "samples"]
Curves = dict[str, Rows]
"""Points of each measure, of training and validation."""

_STYLES = {
    "training": Style("#0072B2", (), "circle"),
    "validation": Style("#D55E00", (7, 3), "square"),
}
_BY = {"epoch": "epoch", "time": "training time", "samples": "samples seen"}


class LearningCurves:
    """Charts of one run, which a notebook shows and `save` writes."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def __repr__(self) -> str:
        titles = ", ".join(panel.title for panel in self.figure.panels)
        return f"<LearningCurves {self.figure.caption}: {titles}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows for this value."""
        caption = escape(self.figure.caption)
        # Drawn for a wide page; on a narrow one it shrinks instead of being cut off.
        shrinking = '<svg style="max-width: 100%; height: auto" '
        drawn = to_svg(self.figure).replace("<svg ", shrinking, 1)
        return f'<figure style="margin: 0">{drawn}<figcaption>{caption}</figcaption></figure>'

    def save(self, path: str | Path) -> None:
        """Write the charts; the suffix decides: .png, .svg or .html.

        Raises:
            SpecError: The suffix is none of these.
            StoreError: The file cannot be written.
        """
        path = Path(path)
        match path.suffix:
            case ".png":
                content = to_png(self.figure)
            case ".svg":
                content = to_svg(self.figure).encode()
            case ".html":
                title = escape(self.figure.caption)
                head = f"<!DOCTYPE html><meta charset='utf-8'><title>{title}</title>"
                content = (head + self._repr_html_()).encode()
            case _:
                raise SpecError(f"cannot write '{path.name}'; end it with .png, .svg or .html")
        try:
            path.write_bytes(content)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def draw_curves(run: RunDir, measures: Sequence[str] = (), *, by: By = "epoch") -> LearningCurves:
    """Draw measures of a run, by default all that it recorded; also of a run under way.

    Raises:
        SpecError: The run did not record such a measure, or `by` is not an axis.
        StoreError: No epoch has ended.
    """
    if by not in get_args(By):
        raise SpecError(f"curves are drawn by {', '.join(get_args(By))}, not by '{by}'")
    curves = read_curves(run)
    state = run.read_status().state
    if not curves:
        why = "none has ended yet" if state == "running" else f"it is {state} without one"
        raise StoreError(f"run {run.name} has no epoch to draw: {why}")
    for name in measures:
        if name not in curves:
            raise SpecError(f"run {run.name} has no curve '{name}' (valid: {', '.join(curves)})")
    panels = [
        Panel(title=f"{name} by {_BY[by]}", spec=_chart(curves[name], name, by))
        for name in measures or curves
    ]
    caption = run.name if state == "finished" else f"{run.name} ({state})"
    return LearningCurves(Figure(id="learning-curves", caption=caption, panels=panels))


def read_curves(run: RunDir) -> Curves:
    """Read the points of every measure that a run recorded at the ends of its epochs."""
    found: dict[int, tuple[Epoch, dict[str, float]]] = {}
    for events in read_logs(run.path / "events", Epoch, Evaluation).values():
        metrics: dict[str, float] = {}
        for event in events:
            # An evaluation is recorded right before the epoch that it belongs to.
            if isinstance(event, Evaluation) and event.part == "validation":
                metrics = event.metrics
            elif isinstance(event, Epoch):
                # A resumed run repeats the epoch that it was interrupted in: the last one counts.
                found[event.epoch] = event, metrics
                metrics = {}
    curves: Curves = {}
    for number in spread(sorted(found), MAX_POINTS):
        _add_epoch(curves, *found[number])
    return curves


def _add_epoch(curves: Curves, epoch: Epoch, metrics: dict[str, float]) -> None:
    values = [
        ("loss", "training", epoch.train_loss),
        ("loss", "validation", epoch.val_loss),
        ("accuracy", "training", epoch.train_accuracy),
        ("accuracy", "validation", epoch.val_accuracy),
        *((name, "validation", value) for name, value in metrics.items()),
    ]
    for name, part, value in values:
        if value is not None and math.isfinite(value):
            row = {
                "series": part,
                "epoch": epoch.epoch + 1,
                "seconds": shorten(epoch.train_s),
                "samples": shorten(epoch.samples),
                "value": shorten(value),
            }
            curves.setdefault(name, []).append(row)


def _chart(rows: Rows, name: str, by: By) -> Spec:
    taken = {row["series"] for row in rows}
    styles = {part: style for part, style in _STYLES.items() if part in taken}
    match by:
        case "epoch":
            x = epoch_axis(rows)
        case "time":
            x = axis("seconds", "training time, s", scale={"zero": True})
        case "samples":
            x = axis("samples", "samples seen", scale={"zero": True})
    return lines(rows, styles, x, axis("value", name))
