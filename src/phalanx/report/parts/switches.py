"""Tabulate changes of strategy within runs, for `times`."""

from __future__ import annotations

from phalanx.report.document import Column, Table, Value, number, text
from phalanx.report.scope import Scope


def switches_table(scope: Scope) -> list[Table]:
    """Make one row per change: when, why, and its pause; empty without changes."""
    rows = [
        [
            text(cell.label),
            Value(str(run.seed), run.seed),
            text(f"{switch.before} to {switch.after}"),
            number(switch.epoch + 1, 0),
            number(switch.samples, 0),
            number(switch.pause_s, 3),
            text(switch.cause),
        ]
        for cell in scope.cells
        for run in cell.finished
        if run.summary is not None
        for switch in run.summary.switches
    ]
    columns = [
        Column("cell", "cell", is_text=True),
        Column("seed", "seed"),
        Column("switch", "switch", is_text=True),
        Column("epoch", "in epoch"),
        Column("samples", "after", "samples"),
        Column("pause_s", "pause", "s"),
        Column("cause", "cause", is_text=True),
    ]
    caption = "Changes of strategy; the pause is the longest time that a worker did not train."
    return [Table(id="switches", caption=caption, columns=columns, rows=rows)] if rows else []
