"""Show the staleness of applied gradients: histograms and a table, for `times`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from phalanx.report.cells import Cell
from phalanx.report.charts import Rows, histogram, shorten
from phalanx.report.document import Block, Column, Figure, Panel, Swatch, Table, number, table_of
from phalanx.report.scope import Scope

MAX_BINS = 12
Counts = Counter[int]
"""Applied gradients by staleness."""


def staleness_blocks(scope: Scope) -> list[Block]:
    """Draw staleness of every task with servers, and tabulate it; empty without servers."""
    blocks: list[Block] = []
    served: list[tuple[Cell, Counts]] = []
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        counts = {cell.id: count for cell in cells if (count := counts_of(cell))}
        own = [cell for cell in cells if cell.id in counts]
        if own:
            blocks.append(_figure(f"staleness-{index}", task, own, counts, scope))
            served += [(cell, counts[cell.id]) for cell in own]
    return [*blocks, _table(served, scope)] if served else []


def counts_of(cell: Cell) -> Counts:
    """Count applied gradients by staleness over all finished runs of a cell."""
    total: Counts = Counter()
    for run in cell.finished:
        if run.summary is not None and run.summary.serving is not None:
            total.update(run.summary.serving.staleness_histogram)
    return total


def quantile(counts: Counts, share: float) -> int:
    """Return the smallest staleness that at least this share of gradients does not exceed."""
    wanted, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return 0


def bins_of(counts: Sequence[Counts]) -> list[tuple[int, int | None]]:
    """Choose common bins: first and last value of each; the last bin is open for the tail."""
    usual = max(quantile(count, 0.99) for count in counts)
    greatest = max(max(count) for count in counts)
    width = -(-(usual + 1) // MAX_BINS)
    bins: list[tuple[int, int | None]] = [
        (first, first + width - 1) for first in range(0, usual + 1, width)
    ]
    end = len(bins) * width
    return [*bins, (end, None)] if greatest >= end else bins


def _figure(
    id: str, task: str, cells: Sequence[Cell], counts: Mapping[str, Counts], scope: Scope
) -> Figure:
    bins = bins_of([counts[cell.id] for cell in cells])
    panels = []
    for batch in dict.fromkeys(cell.batch for cell in cells):
        own = [cell for cell in cells if cell.batch == batch]
        styles = {cell.method: scope.styles[cell.id] for cell in own}
        rows = [row for cell in own for row in histogram_rows(cell.method, counts[cell.id], bins)]
        spec = histogram(rows, styles, "staleness, updates", "share of gradients, %")
        panels.append(Panel(title=f"batch {batch}", spec=spec))
    colours = {cell.method: scope.styles[cell.id].colour for cell in cells}
    caption = (
        f"{task}: staleness of applied gradients, that is the updates between a worker's read and "
        "the application of its gradient; all runs of a cell together, in per cent."
    )
    legend = [Swatch(label=name, colour=tint, is_field=True) for name, tint in colours.items()]
    return Figure(id=id, caption=caption, panels=panels, legend=legend)


def histogram_rows(series: str, counts: Counts, bins: Sequence[tuple[int, int | None]]) -> Rows:
    """Make the rows of one series for `charts.histogram`, in per cent."""
    total = counts.total()
    return [
        {
            "series": series,
            "bin": _bin_label(first, last),
            "rank": rank,
            "share": shorten(100 * _between(counts, first, last) / total),
        }
        for rank, (first, last) in enumerate(bins)
    ]


def _between(counts: Counts, first: int, last: int | None) -> int:
    return sum(
        count
        for value, count in counts.items()
        if value >= first and (last is None or value <= last)
    )


def _bin_label(first: int, last: int | None) -> str:
    if last is None:
        return f"≥{first}"
    return str(first) if first == last else f"{first}\N{EN DASH}{last}"


def _table(served: Sequence[tuple[Cell, Counts]], scope: Scope) -> Table:
    rows = []
    for cell, counts in served:
        serving = [
            run.summary.serving for run in cell.finished if run.summary and run.summary.serving
        ]
        busy = sum(one.server_busy_share for one in serving) / len(serving)
        mean = sum(value * count for value, count in counts.items()) / counts.total()
        dropped = sum(one.pushes_dropped for one in serving)
        row = {
            **scope.place_of(cell),
            Column("gradients", "gradients applied"): number(counts.total(), 0),
            Column("mean", "mean", "updates"): number(mean, 2),
            Column("median", "median", "updates"): number(quantile(counts, 0.5), 0),
            Column("p95", "95th per cent", "updates"): number(quantile(counts, 0.95), 0),
            Column("max", "greatest", "updates"): number(max(counts), 0),
            Column("dropped", "gradients dropped"): number(dropped, 0),
            Column("busy_share", "busiest server", "% busy"): number(busy, 0, scale=100),
        }
        rows.append(row)
    caption = "Staleness of applied gradients, in updates; all runs of a cell together."
    return table_of("staleness-table", caption, rows)
