"""Sum up the resource use of a run from its logs in bounded memory; called for the summary.

The same figures as in `usage`, without its series: logs of hundreds of machines over weeks do not
fit into memory, so each is streamed twice, first for the time in which the run trained, then for
what was used inside it. Only sums and the clock readings of one process are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from phalanx.records.attempts import RunClock
from phalanx.records.events import Clock, HostSample, ProcessSample
from phalanx.records.log import read_events
from phalanx.records.points import host_point, process_point
from phalanx.records.tracks import Point, TimeWindow, clip

SampleT = TypeVar("SampleT", Clock, ProcessSample, HostSample)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Total resource use of a run; None where nothing was measured."""

    cpu_s: float | None = None
    """Processor time of all processes, children included."""
    memory_peak_bytes: int | None = None
    """Peak memory of any one process."""
    energy_j: float | None = None
    """Of all machines, other load included."""
    energy_source: str = ""


def total_use(folder: Path) -> Totals:
    """Sum the resource use of a run while it trained.

    Args:
        folder: The run directory's `events`.
    """
    windows = _training_windows(folder)
    uses = [use for path in _logs(folder) if (use := _process_use(path, windows)) is not None]
    machines = _MachineEnergy()
    for path in _logs(folder):
        machines.take(path, windows)
    return Totals(
        cpu_s=sum(use.cpu_s for use in uses) if uses else None,
        memory_peak_bytes=max((int(use.peak_bytes) for use in uses), default=None),
        energy_j=machines.total_j,
        energy_source=", ".join(sorted(machines.sources - {""})),
    )


def cpu_by_process(folder: Path) -> dict[str, float]:
    """Return the processor time of each process while the run trained."""
    windows = _training_windows(folder)
    uses = {path.stem: _process_use(path, windows) for path in _logs(folder)}
    return {name: use.cpu_s for name, use in uses.items() if use is not None}


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


@dataclass
class _Span:
    """When one incarnation of a process trained, on its own clock."""

    begin_s: float | None = None
    end_s: float = 0.0
    has_ended: bool = False

    def take(self, sample: ProcessSample) -> None:
        if sample.moment == "begin" and self.begin_s is None:
            self.begin_s = sample.mono_s
        if sample.moment:
            self.has_ended = sample.moment == "end"
        # A process that was lost while it trained counts up to its last sample.
        if sample.moment == "end" or not self.has_ended:
            self.end_s = sample.mono_s


def _training_windows(folder: Path) -> dict[int, TimeWindow]:
    windows: dict[int, TimeWindow] = {}
    for path in _logs(folder):
        clocks = _clocks(path)
        spans: dict[tuple[int, int], _Span] = {}
        for sample in _samples(path, ProcessSample):
            spans.setdefault((sample.attempt, sample.pid), _Span()).take(sample)
        for (attempt, _), span in spans.items():
            if span.begin_s is None:
                continue
            clock = clocks.get(attempt) or RunClock(())
            begin_s, end_s = clock.at(span.begin_s), clock.at(span.end_s)
            known = windows.get(attempt, TimeWindow(begin_s, end_s))
            windows[attempt] = TimeWindow(min(known.begin_s, begin_s), max(known.end_s, end_s))
    return windows


@dataclass
class _Track:
    """Running sums over the samples of one incarnation inside a window."""

    window: TimeWindow
    before: Point | None = None
    used: dict[str, float] = field(default_factory=dict)
    first_peak: float | None = None
    last_peak: float = 0.0
    seen: float = 0.0

    def take(self, point: Point) -> None:
        if self.before is not None:
            for stretch in clip((self.before, point), self.window):
                for name, amount in stretch.used.items():
                    self.used[name] = self.used.get(name, 0.0) + amount
        self.before = point
        if self.window.begin_s <= point.time_s <= self.window.end_s:
            self.last_peak = point.levels.get("peak", 0.0)
            self.first_peak = self.last_peak if self.first_peak is None else self.first_peak
            self.seen = max(self.seen, point.levels["memory"])

    @property
    def peak_bytes(self) -> float:
        """Peak memory in the window; the system's peak counts if it rose inside it."""
        rose = self.first_peak is not None and self.last_peak > self.first_peak
        return max(self.seen, self.last_peak) if rose else self.seen


@dataclass(frozen=True)
class _ProcessUse:
    cpu_s: float
    peak_bytes: float


def _process_use(path: Path, windows: dict[int, TimeWindow]) -> _ProcessUse | None:
    clocks = _clocks(path)
    tracks: dict[tuple[int, int], _Track] = {}
    for sample in _samples(path, ProcessSample):
        window = windows.get(sample.attempt)
        if window is not None:
            track = tracks.setdefault((sample.attempt, sample.pid), _Track(window))
            track.take(process_point(sample, clocks.get(sample.attempt) or RunClock(())))
    if not any(track.used for track in tracks.values()):
        return None
    return _ProcessUse(
        cpu_s=sum(t.used.get("user", 0.0) + t.used.get("system", 0.0) for t in tracks.values()),
        peak_bytes=max(track.peak_bytes for track in tracks.values()),
    )


class _MachineEnergy:
    """Energy of all machines; one process on each has measured it."""

    def __init__(self) -> None:
        self.total_j: float | None = None
        self.sources: set[str] = set()

    def take(self, path: Path, windows: dict[int, TimeWindow]) -> None:
        clocks = _clocks(path)
        tracks: dict[tuple[int, str], _Track] = {}
        for sample in _samples(path, HostSample):
            window = windows.get(sample.attempt)
            if window is None or sample.phase == "baseline":
                continue
            track = tracks.setdefault((sample.attempt, sample.host), _Track(window))
            track.take(host_point(sample, clocks.get(sample.attempt) or RunClock(())))
            if "energy" in track.used:
                self.sources.add(sample.energy_source)
        for track in tracks.values():
            if "energy" in track.used:
                self.total_j = (self.total_j or 0.0) + track.used["energy"]


def _clocks(path: Path) -> dict[int, RunClock]:
    readings: dict[int, list[Clock]] = {}
    for event in _samples(path, Clock):
        readings.setdefault(event.attempt, []).append(event)
    return {attempt: RunClock(events) for attempt, events in readings.items()}


def _samples(path: Path, kind: type[SampleT]) -> Iterator[SampleT]:
    for event in read_events(path, kind):
        if isinstance(event, kind):
            yield event
