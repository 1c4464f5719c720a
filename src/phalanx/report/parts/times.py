"""Make the chapter `Where the time went`: phases, stragglers, staleness, switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from phalanx.records.rundir import RunDir
from phalanx.report.blame import Blame, blame_run
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
    Value,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.facts import RunRecord
from phalanx.report.measures import MEASURES, shared_digits
from phalanx.report.parts.staleness import staleness_blocks
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
MAX_CELLS = 12
MAX_LOG_BYTES = 32 * 1024 * 1024
"""Limits of blame in a report."""

Blamed = tuple[Cell, RunRecord, Blame]


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
    blocks += _stragglers(scope, blamed)
    more = [*staleness_blocks(scope), *_switches(scope)]
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
        {"bar": cell, "part": name, "rank": rank, "amount": shorten(seconds)}
        for cell, phases in known.items()
        for rank, (name, seconds) in enumerate(phases.items())
        if seconds > 0
    ]
    legend = [Swatch(label=name, colour=PHASES[name], is_field=True) for name in PHASES]
    spec = stacked_bars(rows, list(PHASES), legend, "time of the mean worker, s")
    caption = f"{task}: phases of the training steps, mean over the runs of a cell, in seconds."
    return Figure(id=id, caption=caption, panels=[Panel(title="", spec=spec)], legend=legend)


def _table(index: int, task: str, known: Mapping[str, Mapping[str, float]]) -> Table:
    totals = {cell: sum(phases.values()) for cell, phases in known.items()}
    digits = shared_digits(MEASURES["train_s"], totals.values())
    rows = [
        {
            label("cell"): text(cell),
            **{
                Column(f"{name.replace(', ', '_').replace(' ', '_')}_s", name, "s"): number(
                    phases[name], digits
                )
                for name in PHASES
            },
            Column("waiting_share", "waiting", "%"): number(
                phases["waiting"] / (totals[cell] or 1), 0, scale=100
            ),
        }
        for cell, phases in known.items()
    ]
    return table_of(f"phases-table-{index}", f"{task}: seconds of the mean worker by phase.", rows)


def blame_typical(scope: Scope) -> list[Blamed]:
    """Compute blame of the typical run of each multi-worker cell, unless its logs are large.

    Blame reads every step; `phalanx blame RUN` has no such limit.
    """
    found = []
    cells = [cell for cell in scope.cells if cell.workers > 1]
    for cell in cells[:MAX_CELLS]:
        run = cell.typical
        if run is None:
            continue
        logs = (run.path / "events").glob("worker-*.jsonl")
        if sum(path.stat().st_size for path in logs) <= MAX_LOG_BYTES:
            found.append((cell, run, blame_run(RunDir(run.path))))
    return found


def _stragglers(scope: Scope, blamed: Sequence[Blamed]) -> list[Block]:
    """Make one row per worker that others waited for; empty without waiting."""
    rows = [
        {
            **scope.place_of(cell),
            label("run"): text(run.name),
            label("worker"): text(f"worker-{one.rank}"),
            Column("cost_s", "cost the others", "s"): number(one.cost_s, 2),
            Column("cost_share", "of all waiting", "%"): number(
                one.cost_s / blame.waiting_s, 0, scale=100
            ),
            label("phase", "mostly behind in"): text(max(one.phases, key=one.phases.__getitem__)),
            Column("rounds_last", "last in rounds"): Value(
                f"{one.rounds_last:,} of {blame.rounds:,}", one.rounds_last
            ),
            Column("waited_s", "waited itself", "s"): number(one.waited_s, 2),
        }
        for cell, run, blame in blamed
        for one in sorted(blame.ranks, key=lambda one: one.rank)
        if one.cost_s > 0
    ]
    caption = (
        "Stragglers: workers that others waited for, in the run of each cell with the median "
        "training time. Waiting that no lateness explains is noise of network and scheduler."
    )
    return [table_of("stragglers", caption, rows)] if rows else []


def _switches(scope: Scope) -> list[Block]:
    """Make one row per change of strategy: when, why, and its pause; empty without changes."""
    rows = [
        {
            label("cell"): text(cell.label),
            Column("seed", "seed"): text(run.seed),
            label("switch"): text(f"{switch.before} to {switch.after}"),
            Column("epoch", "in epoch"): number(switch.epoch + 1, 0),
            Column("samples", "after", "samples"): number(switch.samples, 0),
            Column("pause_s", "pause", "s"): number(switch.pause_s, 3),
            label("cause"): text(switch.cause),
        }
        for cell in scope.cells
        for run in cell.finished
        if run.summary is not None
        for switch in run.summary.switches
    ]
    caption = "Changes of strategy; the pause is the longest time that a worker did not train."
    return [table_of("switches", caption, rows)] if rows else []
