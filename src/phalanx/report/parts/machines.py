"""Make the chapter `Machines`: resource use of processes and machines while they trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

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
from phalanx.report.scope import Scope, Style

MAX_CELLS = 12
"""Cells whose series are drawn; the table has all."""
MAX_LINES = 8
_MIB = 1 / 2**20
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
_DASHES = ((), (7, 3), (2, 2), (9, 3, 2, 3))


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
    blocks: list[Block] = [Text(lines=[intro]), _table(watched, scope)]
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
    shown = run.resources[:MAX_LINES]
    styles = _styles(shown)
    x = axis("seconds", "time in training, s", scale={"zero": True, "nice": False})
    from_zero = {"scale": {"zero": True, "nice": True}}
    hosts = [use for use in shown if use.is_machine]
    processes = [use for use in shown if not use.is_machine]
    charts = [
        ("processor", "busy cores", _rows(shown, lambda point: point.cpu_cores)),
        (
            "memory of processes",
            "memory, MiB",
            _rows(processes, lambda point: point.memory_bytes * _MIB),
        ),
        (
            "network of machines",
            "received, MiB/s",
            _rows(hosts, lambda point: point.received_bytes_per_s["all"] * _MIB),
        ),
    ]
    if any(use.use.energy_j is not None for use in hosts):
        charts.append(("power of machines", "power, W", _rows(hosts, lambda point: point.watts)))
    panels = [
        Panel(
            title=title,
            spec=lines(rows, _only(styles, rows), x, axis("value", y, **from_zero), points=False),
        )
        for title, y, rows in charts
        if rows
    ]
    left_out = len(run.resources) - len(shown)
    more = f" {count_noun(left_out, 'process')} more are left out." if left_out > 0 else ""
    task = f"{cell.task}, " if len(scope.tasks) > 1 else ""
    caption = (
        f"{task}{cell.label}: use over the training time of {run.name}, the run of the cell with "
        f"the median training time.{more}"
    )
    legend = [
        Swatch(label=name, colour=style.colour, dash=style.dash) for name, style in styles.items()
    ]
    return Figure(id=f"use-{index}", caption=caption, panels=panels, legend=legend)


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


def _rows(uses: Sequence[Resources], value: Callable[[UsePoint], float | None]) -> Rows:
    return [
        {"series": use.label, "seconds": shorten(point.t_s), "value": shorten(value(point))}
        for use in uses
        for point in use.use.series
        if value(point) is not None
    ]


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
