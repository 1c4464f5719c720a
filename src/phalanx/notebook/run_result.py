"""Show the summary of a run in a notebook: figures, and curves over the epochs."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.cli.result import result_blocks
from phalanx.records.events import Epoch
from phalanx.records.log import read_logs
from phalanx.records.summary import Summary
from phalanx.report.document import Block, Table, Text

if TYPE_CHECKING:
    from phalanx.notebook.opened_run import OpenedRun

_WIDTH, _HEIGHT, _MARGIN = 340, 150, 30
_COLOURS = {"train": "#0072B2", "val": "#D55E00"}


class RunResult(Summary, kw_only=True):
    """The summary of a run, with its curves; fields are those of `docs/ref-summary.md`."""

    def open(self) -> OpenedRun:
        """Open the run to use what it trained, and to read its records as tables."""
        from phalanx.notebook.opened_run import OpenedRun
        from phalanx.records.rundir import RunDir

        return OpenedRun(RunDir(Path(self.run_dir)))

    def history(self) -> list[Epoch]:
        """Read the figures of each epoch."""
        logs = read_logs(Path(self.run_dir) / "events", Epoch)
        found = [one for events in logs.values() for one in events if isinstance(one, Epoch)]
        # A resumed run repeats the epoch that it was interrupted in: the last one counts.
        return list({one.epoch: one for one in sorted(found, key=lambda one: one.epoch)}.values())

    def __repr__(self) -> str:
        return "\n".join(_lines(result_blocks(self)))

    def _repr_html_(self) -> str:
        """Return what a notebook shows for this value."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td>"
            f"<td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in _figures(result_blocks(self))
        )
        epochs = self.history()
        charts = curve_svg(epochs, "loss") + curve_svg(epochs, "accuracy")
        return f"<div>{charts}</div><table>{rows}</table>"


def as_result(summary: Summary) -> RunResult:
    """Return a summary that a notebook can show."""
    return RunResult(**msgspec.structs.asdict(summary))


def curve_svg(epochs: list[Epoch], measure: str) -> str:
    """Draw training and validation of one measure over the epochs; empty without two points."""
    series = {
        part: [
            (one.epoch + 1, value)
            for one in epochs
            if (value := getattr(one, f"{part}_{measure}")) is not None
        ]
        for part in _COLOURS
    }
    points = [point for own in series.values() for point in own]
    if len({number for number, _ in points}) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    last = max(number for number, _ in points)

    def place(number: int, value: float) -> str:
        x = _MARGIN + (number - 1) / max(1, last - 1) * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (value - low) / (high - low or 1.0) * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f},{y:.1f}"

    lines = "".join(
        f"<polyline fill='none' stroke='{_COLOURS[part]}' stroke-width='2' points='"
        f"{' '.join(place(*point) for point in own)}'/>"
        for part, own in series.items()
        if own
    )
    texts = "".join(
        f"<text x='{x}' y='{y}' font-size='11' fill='{colour}'>{escape(text)}</text>"
        for x, y, text, colour in (
            (2, 14, f"{measure} by epoch", "currentColor"),
            (150, 14, "training", _COLOURS["train"]),
            (210, 14, "validation", _COLOURS["val"]),
            (2, _MARGIN + 4, f"{high:.3g}", "currentColor"),
            (2, _HEIGHT - _MARGIN, f"{low:.3g}", "currentColor"),
            (_WIDTH - _MARGIN - 4, _HEIGHT - 10, str(last), "currentColor"),
        )
    )
    return f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img'>{lines}{texts}</svg>"


def _figures(blocks: list[Block]) -> list[tuple[str, str]]:
    return [
        (row[0].text, row[1].text) for one in blocks if isinstance(one, Table) for row in one.rows
    ]


def _lines(blocks: list[Block]) -> list[str]:
    head = [line for one in blocks if isinstance(one, Text) for line in one.lines]
    return [*head, *(f"  {name:<14} {value}" for name, value in _figures(blocks))]
