"""Describe the machines of a run: their use over time, and what is placed where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from phalanx.dashboard.live_run import LiveRun
from phalanx.dashboard.observed_run import HostPoint
from phalanx.dashboard.time_axis import TimeAxis, finite
from phalanx.report.charts import GREY, MAX_POINTS, Rows, Spec, axis, chart, lines
from phalanx.report.document import (
    Block,
    Column,
    Entries,
    Figure,
    Panel,
    Section,
    Swatch,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.format import format_bytes
from phalanx.report.scope import series_styles

MAX_LINES = 8
"""Machines with a line each; of more, lowest, mean and highest are drawn."""
_MIB = 1 / 2**20
_ALL = "mean of all machines, from lowest to highest"
_MAP_HEIGHT = 300
# The system counts processor time in hundredths of a second: shorter intervals show its ticks.
_SHORTEST_S = 0.25


class HostRates:
    """Use of a machine between two samples."""

    def __init__(self, before: HostPoint, after: HostPoint) -> None:
        self.time_s = after.time_s
        self.seconds = after.time_s - before.time_s
        self._before, self._after = before, after

    def _per_s(self, before: float, after: float) -> float:
        # A total that fell was reset.
        return max(0.0, after - before) / self.seconds

    @property
    def cpu_share(self) -> float:
        """Busy share of all cores."""
        return min(1.0, self._per_s(self._before.busy_s, self._after.busy_s) / self._after.cores)

    @property
    def memory_share(self) -> float:
        """Used share of the memory."""
        return self._after.memory_bytes / max(1, self._after.memory_total_bytes)

    @property
    def received_per_s(self) -> float:
        """Bytes over all interfaces."""
        return self._per_s(self._before.received_bytes, self._after.received_bytes)

    @property
    def sent_per_s(self) -> float:
        """Bytes over all interfaces."""
        return self._per_s(self._before.sent_bytes, self._after.sent_bytes)

    @property
    def watts(self) -> float | None:
        """Power; None where energy is unknown."""
        before, after = self._before.energy_j, self._after.energy_j
        return None if before is None or after is None else self._per_s(before, after)


def host_rates(points: Sequence[HostPoint], max_points: int) -> list[HostRates]:
    """Return the use between samples of one attempt that are far enough apart.

    Samples hold totals: of many, every n-th gives the same use with less detail in time.
    """
    found: list[HostRates] = []
    before: HostPoint | None = None
    step = max(1, -(-len(points) // max_points))
    # The last one always, as it is the present.
    for after in (*points[:-1:step], *points[-1:]):
        if before is None or before.attempt != after.attempt:
            before = after
        elif after.time_s - before.time_s >= _SHORTEST_S:
            found.append(HostRates(before, after))
            before = after
    return found


_MEASURES: tuple[tuple[str, str, Callable[[HostRates], float | None], float], ...] = (
    ("processor", "busy, %", lambda one: one.cpu_share, 100.0),
    ("memory", "used, %", lambda one: one.memory_share, 100.0),
    ("network in", "received, MiB/s", lambda one: one.received_per_s, _MIB),
    ("network out", "sent, MiB/s", lambda one: one.sent_per_s, _MIB),
    ("power", "power, W", lambda one: one.watts, 1.0),
)


def machine_section(live: LiveRun) -> Section | None:
    """Tabulate the machines, and draw their use over time."""
    most = MAX_POINTS if len(live.state.hosts) <= MAX_LINES else MAX_POINTS // 3
    hosts = {name: host_rates(one, most) for name, one in sorted(live.state.hosts.items())}
    hosts = {name: rates for name, rates in hosts.items() if rates}
    if not hosts:
        return None
    times = TimeAxis(live.state.end_s)
    names = list(hosts) if len(hosts) <= MAX_LINES else [_ALL]
    styles = series_styles(names)
    panels = []
    for title, y_title, value, scale in _MEASURES:
        rows = (
            _each(hosts, value, scale, times)
            if len(hosts) <= MAX_LINES
            else _together(hosts, value, scale, times)
        )
        if rows:
            present = {row["series"] for row in rows}
            y = axis("value", y_title, scale={"zero": True, "nice": True})
            spec = lines(
                rows,
                {name: one for name, one in styles.items() if name in present},
                times.channel,
                y,
                band=len(hosts) > MAX_LINES,
                points=False,
            )
            panels.append(Panel(title=title, spec=spec))
    legend = [Swatch(label=name, colour=one.colour) for name, one in styles.items()]
    caption = "Use of whole machines, other work on them included; network over all interfaces."
    blocks: list[Block] = [
        Figure(id="machines", caption=caption, panels=panels, legend=legend),
        table_of(
            "machines-now",
            "Machines: the latest sample, and the mean so far.",
            [_row(name, live.state.hosts[name], rates) for name, rates in hosts.items()],
        ),
    ]
    return Section(id="machines", title="Machines", blocks=blocks)


def _each(
    hosts: dict[str, list[HostRates]],
    value: Callable[[HostRates], float | None],
    scale: float,
    times: TimeAxis,
) -> Rows:
    return [
        {"series": name, "time": times.at(one.time_s), "value": finite(found * scale)}
        for name, rates in hosts.items()
        for one in rates
        if (found := value(one)) is not None
    ]


def _together(
    hosts: dict[str, list[HostRates]],
    value: Callable[[HostRates], float | None],
    scale: float,
    times: TimeAxis,
    num_points: int = 120,
) -> Rows:
    """Make one row per stretch of time: mean, lowest and highest over the machines' means."""
    end_s = max(rates[-1].time_s for rates in hosts.values())
    width_s = max(end_s / num_points, 1.0)
    found: dict[int, list[float]] = {}
    for rates in hosts.values():
        own: dict[int, list[float]] = {}
        for one in rates:
            if (amount := value(one)) is not None:
                own.setdefault(int(one.time_s // width_s), []).append(amount * scale)
        for key, amounts in own.items():
            found.setdefault(key, []).append(fmean(amounts))
    return [
        {
            "series": _ALL,
            "time": times.at((key + 0.5) * width_s),
            "value": finite(fmean(found[key])),
            "low": finite(min(found[key])),
            "high": finite(max(found[key])),
        }
        for key in sorted(found)
    ]


def _row(name: str, points: Sequence[HostPoint], rates: Sequence[HostRates]) -> Entries:
    last, now = points[-1], rates[-1]
    span_s = sum(one.seconds for one in rates)

    def mean(value: Callable[[HostRates], float]) -> float:
        return sum(value(one) * one.seconds for one in rates) / span_s

    joules = [one.watts * one.seconds for one in rates if one.watts is not None]
    return {
        label("machine"): text(name),
        Column("cores", "cores"): number(last.cores, 0),
        Column("cpu_now", "processor", "% now"): number(now.cpu_share, 0, scale=100),
        Column("cpu_mean", "processor", "% mean"): number(
            mean(lambda one: one.cpu_share), 0, scale=100
        ),
        Column("load", "load", "1 min"): number(last.load, 1),
        Column("memory", "memory", "% now"): number(now.memory_share, 0, scale=100),
        Column("memory_total", "memory", "of"): text(format_bytes(last.memory_total_bytes)),
        Column("received", "in", "MiB/s now"): number(now.received_per_s, 2, scale=_MIB),
        Column("sent", "out", "MiB/s now"): number(now.sent_per_s, 2, scale=_MIB),
        Column("watts", "power", "W now"): number(now.watts, 1),
        Column("energy", "energy", "J"): number(sum(joules) if joules else None, 0),
        label("energy_source", "energy from"): text(last.energy_source),
    }


def map_section(live: LiveRun) -> Section | None:
    """Draw which processes are on which machine, and which machines exchange with each other."""
    placed: dict[str, list[str]] = {}
    for process, host in sorted(live.state.places.items()):
        placed.setdefault(host, []).append(process)
    if not placed:
        return None
    traffic = {name: host_rates(points[-8:], 8) for name, points in live.state.hosts.items()}
    rows = [
        {
            label("machine"): text(name),
            label("processes"): text(", ".join(processes)),
            label("parts"): text(_parts(live, processes)),
        }
        for name, processes in placed.items()
    ]
    if live.state.placed is None:
        rows = [{key: value for key, value in row.items() if key.key != "parts"} for row in rows]
    blocks: list[Block] = []
    if len(placed) > 1:
        panel = Panel(
            title="machines and their links", spec=_map(placed, _links(live, placed), traffic)
        )
        caption = (
            "Machines with the number of their processes; a line where they exchange directly. "
            "The larger a machine, the more it sends and receives now."
        )
        blocks.append(Figure(id="map", caption=caption, panels=[panel]))
    blocks.append(table_of("placement", "Where the processes of this run are.", rows))
    return Section(id="map", title="Placement", blocks=blocks)


def _parts(live: LiveRun, processes: Sequence[str]) -> str:
    placed = live.state.placed
    if placed is None:
        return ""
    started = live.state.processes
    ranks = {started[one].rank for one in processes if one in started}
    return ", ".join(one.name for one in placed.parts if ranks & set(one.workers))


def _links(live: LiveRun, placed: dict[str, list[str]]) -> set[tuple[str, str]]:
    """Return the pairs of machines whose processes exchange directly."""
    hosts = live.state.places
    workers = [one for one in hosts if one.startswith("worker")]
    servers = [one for one in hosts if one.startswith("server")]
    if live.state.placed is not None:
        holders = {part.name: part.workers for part in live.state.placed.parts}
        pairs = [
            (f"worker-{source}", f"worker-{target}")
            for part in live.state.placed.parts
            for read in part.reads
            for source in holders.get(read, [])
            for target in part.workers
        ]
    elif servers:
        pairs = [(worker, server) for worker in workers for server in servers]
    else:
        # The ring of an all-reduce, in the order of ranks.
        ring = sorted(workers, key=lambda one: (len(one), one))
        pairs = list(pairwise([*ring, *ring[:1]]))
    found = {(hosts[a], hosts[b]) for a, b in pairs if a in hosts and b in hosts}
    return {(min(a, b), max(a, b)) for a, b in found if a != b}


def _map(
    placed: dict[str, list[str]],
    links: set[tuple[str, str]],
    traffic: dict[str, list[HostRates]],
) -> Spec:
    places = {
        name: (
            math.cos(2 * math.pi * index / len(placed)),
            math.sin(2 * math.pi * index / len(placed)),
        )
        for index, name in enumerate(placed)
    }
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [-1.5, 1.5]}}
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": {"domain": [-1.35, 1.35]}}
    nodes: Rows = []
    for name, processes in placed.items():
        rates = traffic.get(name) or []
        moved = rates[-1].received_per_s + rates[-1].sent_per_s if rates else 0.0
        nodes.append(
            {
                "x": finite(places[name][0]),
                "y": finite(places[name][1]),
                "machine": name,
                "processes": len(processes),
                "MiB/s": finite(moved * _MIB),
            }
        )
    edges: Rows = [
        {
            "x": finite(places[a][0]),
            "y": finite(places[a][1]),
            "x2": finite(places[b][0]),
            "y2": finite(places[b][1]),
        }
        for a, b in sorted(links)
    ]
    size = {
        "field": "MiB/s",
        "type": "quantitative",
        "legend": None,
        "scale": {"range": [120, 900]},
    }
    names = {"type": "text", "dy": -20, "color": "#333333"}
    layers = [
        {
            "data": {"values": edges},
            "mark": {"type": "rule", "color": GREY, "opacity": 0.5},
            "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}},
        },
        {
            "mark": {
                "type": "circle",
                "color": "#0072B2",
                "opacity": 1,
                "tooltip": {"content": "data"},
            },
            "encoding": {"x": x, "y": y, "size": size},
        },
        {
            "mark": names,
            "encoding": {"x": x, "y": y, "text": {"field": "machine", "type": "nominal"}},
        },
    ]
    return chart(nodes, _MAP_HEIGHT, layer=layers)
