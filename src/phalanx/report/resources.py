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


class Resources(msgspec.Struct, frozen=True):
    """Resource use of one machine or process while a run trained, with a series for charts."""

    use: ResourceUse
    is_machine: bool

    @property
    def label(self) -> str:
        """Name in tables and legends."""
        return f"machine {self.use.name}" if self.is_machine else self.use.name

    def figure(self, key: str) -> float | None:
        """Return a total or mean by its name; traffic is known for machines, over all links."""
        value: float | dict[str, int] | None = getattr(self.use, key)
        if not isinstance(value, dict):
            return value
        return sum(value.values()) if self.is_machine else None


def thin(use: ResourceUse, *, is_machine: bool, max_points: int = MAX_POINTS) -> Resources:
    """Keep the totals, and downsample the series to at most so many points."""
    series = [_joined(part) for part in _stretches(use.series, max_points)]
    return Resources(msgspec.structs.replace(use, series=series), is_machine)


def _joined(part: Sequence[_Timed]) -> UsePoint:
    known = all(point.watts is not None for _, point in part)
    received = _mean(part, lambda point: sum(point.received_bytes_per_s.values()))
    return msgspec.structs.replace(
        part[-1][1],
        cpu_cores=_mean(part, lambda point: point.cpu_cores),
        memory_bytes=max(point.memory_bytes for _, point in part),
        received_bytes_per_s={"all": received},
        watts=_mean(part, lambda point: point.watts or 0.0) if known else None,
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
