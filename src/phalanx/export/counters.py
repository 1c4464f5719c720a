"""Turn samples into counters: resource use per second between two samples; pure."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from phalanx.records.attempts import RunClock
from phalanx.records.events import HostSample, ProcessSample, Served
from phalanx.records.points import RECEIVED, SENT, host_point, process_point
from phalanx.records.tracks import Stretch, TimeWindow, clip

MIB = 2**20
Figures = Iterator[tuple[str, dict[str, float]]]
"""Name of a counter, and its values by name."""


def process_figures(stretch: Stretch) -> Figures:
    """Return resource use of a process between two samples."""
    yield from _processor(stretch, cores=1)
    yield "memory (MiB)", {"resident": stretch.levels["memory"] / MIB}


def host_figures(stretch: Stretch, cores: int) -> Figures:
    """Return resource use of a machine between two samples; 100 % is all its cores."""
    yield from _processor(stretch, cores=max(1, cores))
    yield "memory (MiB)", {"used": stretch.levels["memory"] / MIB}
    for title, direction in (("received", RECEIVED), ("sent", SENT)):
        rates = {k: v / stretch.duration_s / MIB for k, v in by_interface(stretch, direction)}
        if rates:
            yield f"network {title} (MiB/s)", rates
    disk = {name: stretch.used[name] for name in ("read", "written") if name in stretch.used}
    if disk:
        yield "disk (MiB/s)", {k: v / stretch.duration_s / MIB for k, v in disk.items()}
    if "energy" in stretch.used:
        yield "power (W)", {"watts": stretch.used["energy"] / stretch.duration_s}


def served_figures(now: Served, before: Served | None) -> Figures:
    """Return the work of a server since its last report."""
    known = before is not None and before.facts.running_s < now.facts.running_s
    earlier = _totals(before) if before is not None and known else (0.0,) * 5
    stale, count, updates, busy_s, elapsed_s = map(operator.sub, _totals(now), earlier)
    if count > 0:
        yield "staleness (updates)", {"mean": stale / count}
    yield "queue (messages)", {"mean": now.facts.queue_mean}
    if elapsed_s > 0:
        yield "updates per second", {"updates": updates / elapsed_s}
        yield "busy (%)", {"server": 100 * busy_s / elapsed_s}


def _totals(served: Served) -> tuple[float, ...]:
    """Return staleness and number of gradients, updates, busy and running seconds; all so far."""
    facts = served.facts
    by_value = [pair for one in facts.staleness.values() for pair in one.histogram.items()]
    stale, count = sum(v * n for v, n in by_value), sum(n for _, n in by_value)
    return stale, count, facts.version, facts.busy_s, facts.running_s


def by_interface(stretch: Stretch, direction: str) -> Iterator[tuple[str, float]]:
    """Yield bytes by network interface."""
    for name, used in stretch.used.items():
        if name.startswith(direction):
            yield name.removeprefix(direction), used


Sample = ProcessSample | HostSample


def between(before: Sample | None, after: Sample) -> list[Stretch]:
    """Return resource use between two samples; empty if they belong to different processes."""
    if before is None or not _same_life(before, after):
        return []
    # Only differences count, so the process's clock needs no conversion.
    clock = RunClock(())
    points = [
        host_point(one, clock) if isinstance(one, HostSample) else process_point(one, clock)
        for one in (before, after)
    ]
    return list(clip(points, TimeWindow(before.mono_s, after.mono_s)))


def _same_life(before: Sample, after: Sample) -> bool:
    if before.attempt != after.attempt or before.mono_s >= after.mono_s:
        return False
    if isinstance(before, ProcessSample) and isinstance(after, ProcessSample):
        return before.pid == after.pid
    return isinstance(before, HostSample) and isinstance(after, HostSample)


def _processor(stretch: Stretch, *, cores: int) -> Figures:
    scale = 100 / stretch.duration_s / cores
    yield (
        "CPU (%)",
        {"user": scale * stretch.used["user"], "system": scale * stretch.used["system"]},
    )
