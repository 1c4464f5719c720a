"""Downsample resource use of machines and processes for charts; pure.

Series are averaged over stretches of time, so a chart and the mean beside it agree; memory keeps
the highest value of each stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import msgspec

from phalanx.records.usage import ResourceUse, UsePoint

MAX_POINTS = 120
"""Per line: more than a chart of this width can show."""
# The system counts processor time in hundredths of a second: shorter intervals show its ticks.
_SHORTEST_S = 0.25

_Timed = tuple[float, UsePoint]


class UseSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Use over the seconds of training, one value per point."""

    t_s: list[float]
    cpu_cores: list[float]
    memory_bytes: list[float]
    received_bytes_per_s: list[float]
    """Over all network interfaces."""
    sent_bytes_per_s: list[float]
    watts: list[float | None]


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of one machine or process while a run trained."""

    name: str
    host: str
    is_machine: bool
    duration_s: float
    cpu_s: float
    cpu_cores: float
    cpu_share: float | None
    memory_mean_bytes: float
    memory_peak_bytes: int
    received_bytes: int | None
    sent_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    energy_j: float | None
    energy_source: str
    series: UseSeries


def thin(use: ResourceUse, *, is_machine: bool, max_points: int = MAX_POINTS) -> Resources:
    """Keep the totals, and downsample the series to at most so many points."""
    return Resources(
        name=use.name,
        host=use.host,
        is_machine=is_machine,
        duration_s=use.duration_s,
        cpu_s=use.cpu_s,
        cpu_cores=use.cpu_cores,
        cpu_share=use.cpu_share,
        memory_mean_bytes=use.memory_mean_bytes,
        memory_peak_bytes=use.memory_peak_bytes,
        received_bytes=sum(use.received_bytes.values()) if is_machine else None,
        sent_bytes=sum(use.sent_bytes.values()) if is_machine else None,
        read_bytes=use.read_bytes,
        written_bytes=use.written_bytes,
        energy_j=use.energy_j,
        energy_source=use.energy_source,
        series=_thinned(use.series, max_points),
    )


def _thinned(points: Sequence[UsePoint], max_points: int) -> UseSeries:
    parts = list(_stretches(points, max_points))
    return UseSeries(
        t_s=[part[-1][1].t_s for part in parts],
        cpu_cores=[_mean(part, lambda point: point.cpu_cores) for part in parts],
        memory_bytes=[max(point.memory_bytes for _, point in part) for part in parts],
        received_bytes_per_s=[
            _mean(part, lambda point: sum(point.received_bytes_per_s.values())) for part in parts
        ],
        sent_bytes_per_s=[
            _mean(part, lambda point: sum(point.sent_bytes_per_s.values())) for part in parts
        ],
        watts=[
            None
            if any(point.watts is None for _, point in part)
            else _mean(part, lambda point: point.watts or 0.0)
            for part in parts
        ],
    )


def _stretches(points: Sequence[UsePoint], max_points: int) -> Iterator[list[_Timed]]:
    """Group points with their durations until each group is long enough."""
    if not points:
        return
    least_s = max(points[-1].t_s / max_points, _SHORTEST_S)
    before_s, group_s = 0.0, 0.0
    group: list[_Timed] = []
    for point in points:
        duration_s = max(0.0, point.t_s - before_s)
        before_s = point.t_s
        group.append((duration_s, point))
        group_s += duration_s
        if group_s >= least_s:
            yield group
            group, group_s = [], 0.0
    # The remainder is too short to be meaningful, unless it is the only group.
    if group and before_s < least_s:
        yield group


def _mean(part: Sequence[_Timed], value: Callable[[UsePoint], float]) -> float:
    total_s = sum(duration_s for duration_s, _ in part)
    if total_s == 0:
        return fmean(value(point) for _, point in part)
    return sum(duration_s * value(point) for duration_s, point in part) / total_s
