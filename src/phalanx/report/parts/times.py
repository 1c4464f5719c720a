"""Make the chapter `Where the time went`: phases, waiting, and staleness under servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from phalanx.report.cells import Cell
from phalanx.report.charts import Rows, shorten, stacked_bars
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Swatch,
    Table,
    Text,
    number,
    text,
)
from phalanx.report.facts import RunRecord
from phalanx.report.measures import MEASURES, shared_digits
from phalanx.report.parts.staleness import staleness_blocks
from phalanx.report.parts.stragglers import Blamed, stragglers_table
from phalanx.report.parts.switches import switches_table
from phalanx.report.scope import Scope

PHASES = {
    "input": "#999999",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "backward, communication behind it": "#009E73",
    "communication, exposed": "#E69F00",
    "waiting": "#D55E00",
    "apply": "#CC79A7",
}
"""Phase to colour, in the order of a step."""


def phases_of(run: RunRecord) -> dict[str, float]:
    """Return seconds of the mean worker by phase; together the time of its training steps.

    Forward and backward are summed from the steps, the rest comes from the summary. Exchange that
    overlaps with backward is not additional time: it marks a part of backward.
    """
    summary = run.summary
    workers = [process.sums for process in run.processes if process.sums.steps]
    if summary is None or not workers:
        return {}
    backward = fmean(sums.backward_s for sums in workers)
    hidden = min(backward, summary.overlapped_s)
    seconds = (
        summary.input_s,
        fmean(sums.forward_s for sums in workers),
        backward - hidden,
        hidden,
        summary.communication_s,
        summary.wait_s,
        summary.apply_s,
    )
    return dict(zip(PHASES, seconds, strict=True))


def mean_phases(cell: Cell) -> dict[str, float]:
    """Average phases over the finished runs of a cell."""
    known = [phases for run in cell.finished if (phases := phases_of(run))]
    return {name: fmean(one[name] for one in known) for name in PHASES} if known else {}


def where_time_went(scope: Scope, blamed: Sequence[Blamed] = ()) -> Section | None:
    """Show phases of every task, stragglers, staleness under servers, and switches."""
    blocks: list[Block] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        known = {cell.label: phases for cell in cells if (phases := mean_phases(cell))}
        if known:
            blocks += [_figure(f"phases-{index}", task, known), _table(index, task, known)]
    blocks += stragglers_table(scope, blamed)
    more = [*staleness_blocks(scope), *switches_table(scope)]
    if not blocks and not more:
        return None
    intro = (
        "Seconds of the mean worker in training steps. Communication that overlaps with backward "
        "costs no additional time; what is exposed does. Waiting is for slower workers, or for the "
        "rule of a parameter server; evaluation and start-up are apart."
    )
    return Section(
        id="where-time-went",
        title="Where the time went",
        blocks=[Text(lines=[intro]), *blocks, *more],
    )


def _figure(id: str, task: str, known: Mapping[str, Mapping[str, float]]) -> Figure:
    rows: Rows = [
        {"bar": label, "part": name, "rank": rank, "amount": shorten(seconds)}
        for label, phases in known.items()
        for rank, (name, seconds) in enumerate(phases.items())
        if seconds > 0
    ]
    legend = [Swatch(label=name, colour=PHASES[name], is_field=True) for name in PHASES]
    spec = stacked_bars(rows, list(PHASES), legend, "time of the mean worker, s")
    caption = f"{task}: phases of the training steps, mean over the runs of a cell, in seconds."
    return Figure(id=id, caption=caption, panels=[Panel(title="", spec=spec)], legend=legend)


def _table(index: int, task: str, known: Mapping[str, Mapping[str, float]]) -> Table:
    columns = [
        Column("cell", "cell", is_text=True),
        *(Column(f"{name.replace(', ', '_').replace(' ', '_')}_s", name, "s") for name in PHASES),
        Column("waiting_share", "waiting", "%"),
    ]
    totals = {label: sum(phases.values()) for label, phases in known.items()}
    digits = shared_digits(MEASURES["train_s"], totals.values())
    rows = [
        [
            text(label),
            *(number(phases[name], digits) for name in PHASES),
            number(phases["waiting"] / (totals[label] or 1), 0, scale=100),
        ]
        for label, phases in known.items()
    ]
    caption = f"{task}: seconds of the mean worker by phase."
    return Table(id=f"phases-table-{index}", caption=caption, columns=columns, rows=rows)
