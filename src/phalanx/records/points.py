"""Convert sample events to points of a track: running totals, and levels.

Called by `usage`, which interprets the names.
"""

from __future__ import annotations

from phalanx.records.attempts import RunClock
from phalanx.records.events import HostSample, ProcessSample
from phalanx.records.tracks import Point

CORE, RECEIVED, SENT = "core ", "in ", "out "
"""Prefixes of the number of a core and the name of an interface."""


def process_point(sample: ProcessSample, clock: RunClock) -> Point:
    """Convert a sample of a process to the controller's clock."""
    totals = {"user": sample.cpu_user_s, "system": sample.cpu_system_s}
    _put(totals, "read", sample.read_bytes)
    _put(totals, "written", sample.written_bytes)
    return Point(
        time_s=clock.at(sample.mono_s),
        totals=totals,
        levels={"memory": sample.memory_bytes, "peak": sample.memory_peak_bytes},
    )


def host_point(sample: HostSample, clock: RunClock) -> Point:
    """Convert a sample of a machine to the controller's clock."""
    totals = {
        "user": sample.cpu_user_s,
        "system": sample.cpu_system_s,
        "stolen": sample.cpu_stolen_s,
    }
    totals.update({f"{CORE}{i}": busy for i, busy in enumerate(sample.core_busy_s)})
    totals.update({f"{RECEIVED}{name}": total for name, total in sample.received_bytes.items()})
    totals.update({f"{SENT}{name}": total for name, total in sample.sent_bytes.items()})
    _put(totals, "read", sample.read_bytes)
    _put(totals, "written", sample.written_bytes)
    _put(totals, "energy", sample.energy_j)
    _put(totals, "group", sample.group_cpu_s)
    levels = {"memory": float(sample.memory_used_bytes), "load": sample.load_1min}
    _put(levels, "group memory", sample.group_memory_bytes)
    return Point(time_s=clock.at(sample.mono_s), totals=totals, levels=levels)


def _put(totals: dict[str, float], name: str, value: float | None) -> None:
    if value is not None:
        totals[name] = value
