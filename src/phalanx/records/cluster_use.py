"""Add up the use of all machines of a run over time: processor, memory, network, load.

Machines are sampled at moments of their own, so their series are read at common moments first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.records.usage import ResourceUse, UsePoint

_MOMENTS = 512  # as many as samples of a machine are kept
_Series: TypeAlias = npt.NDArray[np.float64]


class Extent(msgspec.Struct, frozen=True):
    """The least, mean and greatest value of a series over the training time."""

    least: float
    mean: float
    greatest: float


class ClusterUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of all machines of a run together while it trained."""

    num_machines: int
    cpu_share: Extent
    """Of all cores of all machines, 0 to 1."""
    memory_bytes: Extent
    """In use, summed over the machines."""
    received_bytes_per_s: Extent
    sent_bytes_per_s: Extent
    load: Extent | None
    """One-minute load, summed over the machines."""


def cluster_use(machines: Sequence[ResourceUse]) -> ClusterUse | None:
    """Sum the use of machines at common moments; None without samples of any.

    A machine that was sampled for a shorter time counts with its nearest sample.
    """
    watched = [use for use in machines if use.series and use.cores]
    if not watched:
        return None
    moments = np.linspace(0, max(use.series[-1].t_s for use in watched), _MOMENTS + 1)[1:]

    def total(value: Callable[[UsePoint], float]) -> Extent:
        return _extent(_summed(watched, moments, value))

    cores = sum(use.cores or 0 for use in watched)
    return ClusterUse(
        num_machines=len(watched),
        cpu_share=_extent(_summed(watched, moments, lambda point: point.cpu_cores) / cores),
        memory_bytes=total(lambda point: point.memory_bytes),
        received_bytes_per_s=total(lambda point: sum(point.received_bytes_per_s.values())),
        sent_bytes_per_s=total(lambda point: sum(point.sent_bytes_per_s.values())),
        load=total(lambda point: point.load or 0.0)
        if all(point.load is not None for use in watched for point in use.series)
        else None,
    )


def _summed(
    machines: Sequence[ResourceUse], moments: _Series, value: Callable[[UsePoint], float]
) -> _Series:
    whole = np.zeros(len(moments))
    for use in machines:
        whole += np.array([value(point) for point in use.series])[_places(use.series, moments)]
    return whole


def points_at(series: Sequence[UsePoint], moments: Sequence[float]) -> list[UsePoint]:
    """Return the point of a series for each moment: the mean of the interval around it."""
    return [series[place] for place in _places(series, np.asarray(moments))]


def _places(series: Sequence[UsePoint], moments: _Series) -> npt.NDArray[np.intp]:
    ends = np.array([point.t_s for point in series])
    return np.minimum(np.searchsorted(ends, moments), len(ends) - 1)


def _extent(series: _Series) -> Extent:
    return Extent(float(series.min()), float(series.mean()), float(series.max()))
