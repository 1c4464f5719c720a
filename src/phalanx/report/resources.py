"""What a machine or process used during a run, in few enough points to be drawn; pure.

Series are thinned by averaging stretches of equal length, never by leaving points out, so a chart
and the mean beside it agree. Memory keeps the highest value of each stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from phalanx.records.usage import ResourceUse, UsePoint

MAX_POINTS = 120
"""Per line: more than a chart of this width can show."""


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
    """What one machine or process used while a run trained."""

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
    """Totals as they are, and the series in at most so many points."""
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
    size = max(1, -(-len(points) // max_points))
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return UseSeries(
        t_s=[part[-1].t_s for part in parts],
        cpu_cores=[fmean(point.cpu_cores for point in part) for part in parts],
        memory_bytes=[max(point.memory_bytes for point in part) for part in parts],
        received_bytes_per_s=[
            fmean(sum(point.received_bytes_per_s.values()) for point in part) for part in parts
        ],
        sent_bytes_per_s=[
            fmean(sum(point.sent_bytes_per_s.values()) for point in part) for part in parts
        ],
        watts=[_mean_of([point.watts for point in part]) for part in parts],
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
