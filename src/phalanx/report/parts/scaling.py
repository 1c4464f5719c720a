"""Make the chapter `Scaling`: speed-up and efficiency against one worker, if it was run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.report.cells import Cell
from phalanx.report.charts import bars_with_range, shorten
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Swatch,
    Table,
    Text,
    label,
    number,
    span,
    table_of,
    text,
)
from phalanx.report.format import count_noun
from phalanx.report.measures import contrast_cells
from phalanx.report.scope import Scope, is_alone
from phalanx.report.stats import Contrast


class Speedup(msgspec.Struct, kw_only=True):
    """Speed-up of one cell over training on one worker."""

    cell: Cell
    baseline: Cell
    speed: Contrast
    """Samples per second."""
    ideal: float
    """Compute threads of the cell over those of the baseline."""

    @property
    def efficiency(self) -> float | None:
        """Speed-up per compute thread."""
        return None if self.speed.ratio is None else self.speed.ratio / self.ideal


def speedups(cells: Sequence[Cell]) -> list[Speedup]:
    """Compare the multi-worker cells of a task with the single-worker cell of nearest batch."""
    alone = [cell for cell in cells if is_alone(cell) and cell.finished]
    found = []
    for cell in cells:
        if is_alone(cell) or not cell.finished or not alone:
            continue
        base = min(alone, key=lambda one: (abs(one.global_batch - cell.global_batch), one.id))
        speed = contrast_cells(cell, base, "samples_per_s")
        if speed is not None:
            ideal = threads_of(cell) / threads_of(base)
            found.append(Speedup(cell=cell, baseline=base, speed=speed, ideal=ideal))
    return found


def threads_of(cell: Cell) -> int:
    """Return the compute threads of all workers together."""
    summary = cell.finished[0].summary
    return summary.workers * summary.threads if summary is not None else cell.workers


def scaling(scope: Scope) -> Section | None:
    """Draw and tabulate speed-up per task; None if no task has a run on one worker."""
    blocks: list[Block] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        found = speedups(cells)
        if found:
            blocks.append(_figure(f"scaling-{index}", task, found, scope))
            blocks.append(_table(f"speedup-{index}", task, found))
    if not blocks:
        return None
    intro = (
        "Speed-up is samples per second over those of one worker with the nearest global batch. "
        "Efficiency divides it by the compute threads put in, relative to that one worker, so that "
        "a worker that already used all cores counts as what it was. Speed alone says nothing "
        "about what was learnt: see Same result?"
    )
    return Section(id="scaling", title="Scaling", blocks=[Text(lines=[intro]), *blocks])


def _figure(id: str, task: str, found: Sequence[Speedup], scope: Scope) -> Figure:
    rows = [
        {
            "series": one.cell.label,
            "amount": shorten(one.speed.ratio),
            "low": shorten(one.speed.ratio_low),
            "high": shorten(one.speed.ratio_high),
            "ideal": shorten(one.ideal),
        }
        for one in found
        if one.speed.ratio is not None
    ]
    styles = {one.cell.label: scope.styles[one.cell.id] for one in found}
    spec = bars_with_range(rows, styles, "speed-up, times the samples/s of one worker")
    caption = (
        f"{task}: speed relative to one worker. The dashed line is one worker's speed, the upright "
        "tick what the compute threads would give without any loss; thin lines are 95 % intervals, "
        "cut off at the edge of the chart; pale bars have none, and show nothing for certain."
    )
    legend = [
        Swatch(label="one worker's speed", colour="#767676", dash=(3, 3)),
        Swatch(label="without loss", colour="#333333", shape="tick"),
    ]
    return Figure(id=id, caption=caption, panels=[Panel(title="", spec=spec)], legend=legend)


def _table(id: str, task: str, found: Sequence[Speedup]) -> Table:
    rows = [
        {
            label("cell"): text(one.cell.label),
            label("baseline", "against"): text(
                f"{one.baseline.label} ({count_noun(threads_of(one.baseline), 'thread')})"
            ),
            Column("workers", "workers"): number(one.cell.workers, 0),
            Column("threads", "compute threads"): number(threads_of(one.cell), 0),
            Column("speedup", "speed-up", "times"): number(one.speed.ratio, 2),
            Column("speedup_interval", "95 % interval"): span(
                one.speed.ratio_low, one.speed.ratio_high, 2
            ),
            Column("efficiency", "efficiency", "%"): number(one.efficiency, 0, scale=100),
        }
        for one in found
    ]
    caption = (
        f"{task}: speed-up and efficiency. There is no interval where the runs scatter so much "
        "that none has an end, or where there is one run only."
    )
    return table_of(id, caption, rows)
