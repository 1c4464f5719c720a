"""Make the chapter `Machines`: resource use of processes and machines while they trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from phalanx.records.cluster_use import points_at
from phalanx.records.usage import UsePoint
from phalanx.report.cells import Cell
from phalanx.report.charts import Rows, axis, lines, shorten
from phalanx.report.document import (
    Block,
    Column,
    Entries,
    Figure,
    Panel,
    Section,
    Swatch,
    Table,
    Text,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.facts import Resources, RunRecord
from phalanx.report.format import count_noun
from phalanx.report.measures import CLUSTER, estimate_cell
from phalanx.report.scope import Scope, Style

MAX_CELLS = 12
"""Cells whose series are drawn; the table has all."""
MAX_LINES = 8
"""Machines and processes in one chart; above, every machine has a chart of its own."""
_MIB = 1 / 2**20
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
_DASHES = ((), (7, 3), (2, 2), (9, 3, 2, 3))
_MEAN = "mean of machines"
_RANGE_STYLE = Style("#0072B2", (), "circle")


class _Quantity(msgspec.Struct, frozen=True):
    """A quantity that is drawn over time."""

    title: str
    axis: str
    value: Callable[[UsePoint], float | None]


_CORES = _Quantity("processor", "busy cores", lambda point: point.cpu_cores)
_MEMORY = _Quantity("memory", "memory, MiB", lambda point: point.memory_bytes * _MIB)
_OF_MACHINES = (
    _MEMORY,
    _Quantity(
        "network in", "received, MiB/s", lambda point: point.received_bytes_per_s["all"] * _MIB
    ),
    _Quantity("network out", "sent, MiB/s", lambda point: point.sent_bytes_per_s["all"] * _MIB),
    _Quantity("load", "processes that run or wait", lambda point: point.load),
    _Quantity("power", "power, W", lambda point: point.watts),
)


def machines(scope: Scope) -> Section | None:
    """Tabulate means per cell, and draw the series of one run of each."""
    watched = [cell for cell in scope.cells if any(run.resources for run in cell.finished)]
    if not watched:
        return None
    intro = (
        "Samples are clipped to the time from the first training step to the last. A process is "
        "counted with its children; a machine is counted whole, other work on it included. Network "
        "is over all interfaces; processes that share a machine exchange over the loopback "
        "interface, where every byte is both sent and received."
    )
    blocks: list[Block] = [Text(lines=[intro]), *_cluster_table(watched, scope)]
    blocks.append(_table(watched, scope))
    blocks += [
        _figure(number_, cell, run, scope)
        for number_, cell in enumerate(watched[:MAX_CELLS], start=1)
        if (run := cell.typical) is not None and run.resources
    ]
    if len(watched) > MAX_CELLS:
        rest = count_noun(len(watched) - MAX_CELLS, "more cell")
        blocks.append(Text(lines=[f"The series of {rest} are not drawn; the table has all."]))
    return Section(id="machines", title="Machines and processes", blocks=blocks)


def _figure(index: int, cell: Cell, run: RunRecord, scope: Scope) -> Figure:
    machines = [use for use in run.resources if use.is_machine]
    processes = [use for use in run.resources if not use.is_machine]
    task = f"{cell.task}, " if len(scope.tasks) > 1 else ""
    caption = (
        f"{task}{cell.label}: use over the training time of {run.name}, the run of the cell with "
        "the median training time."
    )
    if len(run.resources) <= MAX_LINES:
        styles = _styles(run.resources)
        panels = [
            _panel("processor", _CORES, run.resources, styles),
            _panel("memory of processes", _MEMORY, processes, styles),
            *(_panel(f"{one.title} of machines", one, machines, styles) for one in _OF_MACHINES),
        ]
        legend = styles
    else:
        caption += (
            " One chart per machine with its processes (coloured lines, in the order of their "
            "names); machines together follow, with their mean and from the lowest to the highest."
        )
        panels = [_panel_of_machine(one, processes) for one in machines]
        panels += [_panel_of_range(one, machines) for one in (_CORES, *_OF_MACHINES)]
        legend = {_MEAN: _RANGE_STYLE}
    swatches = [
        Swatch(label=name, colour=style.colour, dash=style.dash) for name, style in legend.items()
    ]
    drawn = [panel for panel in panels if panel is not None]
    return Figure(id=f"use-{index}", caption=caption, panels=drawn, legend=swatches)


def _panel(
    title: str, quantity: _Quantity, uses: Sequence[Resources], styles: dict[str, Style]
) -> Panel | None:
    rows = [
        {"series": use.label, "seconds": shorten(point.t_s), "value": shorten(value)}
        for use in uses
        for point in use.use.series
        if (value := quantity.value(point)) is not None
    ]
    return _drawn(title, quantity, rows, styles)


def _panel_of_machine(machine: Resources, processes: Sequence[Resources]) -> Panel | None:
    own = [machine, *(use for use in processes if use.use.host == machine.use.name)]
    return _panel(f"{machine.use.name}: processor", _CORES, own, _styles(own))


def _panel_of_range(quantity: _Quantity, machines: Sequence[Resources]) -> Panel | None:
    """Draw the mean over machines at the moments of the first, with the lowest and the highest."""
    series = [use.use.series for use in machines if use.use.series]
    moments = [point.t_s for point in series[0]] if series else []
    rows = []
    columns = [points_at(own, moments) for own in series]
    for moment, points in zip(moments, zip(*columns, strict=True), strict=True):
        values = [value for point in points if (value := quantity.value(point)) is not None]
        if values:
            rows.append(
                {
                    "series": _MEAN,
                    "seconds": shorten(moment),
                    "value": shorten(fmean(values)),
                    "low": shorten(min(values)),
                    "high": shorten(max(values)),
                }
            )
    return _drawn(f"{quantity.title} of machines", quantity, rows, {_MEAN: _RANGE_STYLE}, band=True)


def _drawn(
    title: str, quantity: _Quantity, rows: Rows, styles: dict[str, Style], *, band: bool = False
) -> Panel | None:
    if not rows:
        return None
    x = axis("seconds", "time in training, s", scale={"zero": True, "nice": False})
    y = axis("value", quantity.axis, scale={"zero": True, "nice": True})
    return Panel(title=title, spec=lines(rows, _only(styles, rows), x, y, points=False, band=band))


def _styles(uses: Sequence[Resources]) -> dict[str, Style]:
    hosts = [use.label for use in uses if use.is_machine]
    processes = [use.label for use in uses if not use.is_machine]
    dashes = [(), *_DASHES[1:]]
    return {
        name: Style("#000000", _DASHES[n % len(_DASHES)], "circle") for n, name in enumerate(hosts)
    } | {
        name: Style(_COLOURS[n % len(_COLOURS)], dashes[n // len(_COLOURS)], "circle")
        for n, name in enumerate(processes)
    }


def _only(styles: dict[str, Style], rows: Rows) -> dict[str, Style]:
    present = {row["series"] for row in rows}
    return {name: style for name, style in styles.items() if name in present}


def _cluster_table(cells: Sequence[Cell], scope: Scope) -> list[Table]:
    """Tabulate the use of all machines together, one row per cell and quantity."""
    rows: list[Entries] = []
    for cell in cells:
        for title, measures in CLUSTER.values():
            found = {one: estimate_cell(cell, one.key) for one in measures.values()}
            if all(found.values()):
                unit = next(iter(measures.values())).unit
                rows.append(
                    {
                        **scope.place_of(cell),
                        label("quantity"): text(f"{title}, {unit}".removesuffix(", ")),
                        **{
                            Column(extent, extent): number(
                                estimate.mean, measure.digits or 0, scale=measure.scale
                            )
                            for extent, measure in measures.items()
                            if (estimate := found[measure]) is not None
                        },
                    }
                )
    caption = (
        "Use of all machines together while training, at any moment: processors as a share of all "
        "cores, the rest summed over the machines; mean over the runs of a cell."
    )
    return [table_of("cluster", caption, rows)] if rows else []


def _table(cells: Sequence[Cell], scope: Scope) -> Table:
    rows = [{**scope.place_of(cell), **values} for cell in cells for values in _users(cell)]
    caption = (
        "Use while training, mean over the runs of a cell. Energy is measured by the processor's "
        "counters (rapl) or computed from declared watts (model)."
    )
    return table_of("resources", caption, rows)


def _users(cell: Cell) -> list[Entries]:
    """Make one row per machine or process name, over the runs that have it."""
    named: dict[str, list[Resources]] = {}
    for run in cell.finished:
        for use in run.resources:
            named.setdefault(use.label, []).append(use)
    return [_values(name, uses) for name, uses in named.items()]


def _values(name: str, uses: Sequence[Resources]) -> Entries:
    def mean(key: str, title: str, unit: str, digits: int, scale: float = 1.0) -> Entries:
        known = [value for use in uses if (value := use.figure(key)) is not None]
        return {
            Column(key, title, unit): number(fmean(known) if known else None, digits, scale=scale)
        }

    sources = sorted({use.use.energy_source for use in uses} - {""})
    return {
        label("who", "machine or process"): text(name),
        Column("runs", "n"): number(len(uses), 0),
        **mean("cpu_cores", "busy cores", "mean", 2),
        **mean("cpu_share", "of the machine", "%", 0, 100),
        **mean("memory_mean_bytes", "memory", "MiB", 0, _MIB),
        **mean("memory_peak_bytes", "peak memory", "MiB", 0, _MIB),
        **mean("received_bytes", "received", "MiB", 1, _MIB),
        **mean("sent_bytes", "sent", "MiB", 1, _MIB),
        **mean("read_bytes", "read", "MiB", 1, _MIB),
        **mean("written_bytes", "written", "MiB", 1, _MIB),
        **mean("energy_j", "energy", "J", 1),
        label("energy_source", "energy from"): text(", ".join(sources)),
    }
