"""Tabulate stragglers of one run of each cell, for `times`.

Blame reads every step, so it is computed for the typical run of a cell only, and not from logs
that would take long to read: `phalanx blame RUN` has no such limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.rundir import RunDir
from phalanx.report.blame import Blame, blame_run
from phalanx.report.cells import Cell
from phalanx.report.document import Block, Column, Table, Value, number, text
from phalanx.report.facts import RunRecord
from phalanx.report.scope import Scope

MAX_CELLS = 12
MAX_LOG_BYTES = 32 * 1024 * 1024

Blamed = tuple[Cell, RunRecord, Blame]


def blame_typical(scope: Scope) -> list[Blamed]:
    """Compute blame of the typical run of each multi-worker cell, unless its logs are large."""
    found = []
    cells = [cell for cell in scope.cells if cell.workers > 1]
    for cell in cells[:MAX_CELLS]:
        run = cell.typical
        if run is not None and _log_bytes(run) <= MAX_LOG_BYTES:
            found.append((cell, run, blame_run(RunDir(run.path))))
    return found


def stragglers_table(scope: Scope, blamed: Sequence[Blamed]) -> list[Block]:
    """Make one row per worker that others waited for; empty without waiting."""
    rows = [
        [
            *([text(cell.task)] if len(scope.tasks) > 1 else []),
            text(cell.label),
            text(run.name),
            text(f"worker-{one.rank}"),
            number(one.cost_s, 2),
            number(one.cost_s / blame.waiting_s, 0, scale=100),
            text(max(one.phases, key=lambda phase: one.phases[phase])),
            Value(f"{one.rounds_last:,} of {blame.rounds:,}", one.rounds_last),
            number(one.waited_s, 2),
        ]
        for cell, run, blame in blamed
        for one in sorted(blame.ranks, key=lambda one: one.rank)
        if one.cost_s > 0
    ]
    columns = [
        *([Column("task", "task", is_text=True)] if len(scope.tasks) > 1 else []),
        Column("cell", "cell", is_text=True),
        Column("run", "run", is_text=True),
        Column("worker", "worker", is_text=True),
        Column("cost_s", "cost the others", "s"),
        Column("cost_share", "of all waiting", "%"),
        Column("phase", "mostly behind in", is_text=True),
        Column("rounds_last", "last in rounds"),
        Column("waited_s", "waited itself", "s"),
    ]
    caption = (
        "Stragglers: workers that others waited for, in the run of each cell with the median "
        "training time. Waiting that no lateness explains is noise of network and scheduler."
    )
    return [Table(id="stragglers", caption=caption, columns=columns, rows=rows)] if rows else []


def _log_bytes(run: RunRecord) -> int:
    return sum(path.stat().st_size for path in (run.path / "events").glob("worker-*.jsonl"))
