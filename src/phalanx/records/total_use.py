"""Sum up the resource use of a run from its logs in bounded memory; called for the summary.

The same figures as in `usage`, without its series: logs of hundreds of machines over weeks do not
fit into memory, so each is streamed twice, first for the time in which the run trained, then for
what was used inside it. Only sums and the clock readings of one process are held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from phalanx.records.attempts import RunClock
from phalanx.records.events import Clock, HostSample, ProcessSample
from phalanx.records.log import read_events
from phalanx.records.tracks import Point, TimeWindow, clip
from phalanx.records.usage import training_windows


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
    uses = _log_uses(folder).values()
    seconds = [use.cpu_s for use in uses if use.cpu_s is not None]
    joules = [use.energy_j for use in uses if use.energy_j is not None]
    peaks = [use.peak_bytes for use in uses if use.cpu_s is not None]
    return Totals(
        cpu_s=sum(seconds) if seconds else None,
        memory_peak_bytes=max(peaks, default=None),
        energy_j=sum(joules) if joules else None,
        energy_source=", ".join(sorted(set().union(*(use.sources for use in uses)) - {""})),
    )


def cpu_by_process(folder: Path) -> dict[str, float]:
    """Return the processor time of each process while the run trained."""
    uses = _log_uses(folder).items()
    return {name: use.cpu_s for name, use in uses if use.cpu_s is not None}


def _log_uses(folder: Path) -> dict[str, _LogUse]:
    paths = sorted(folder.glob("*.jsonl"))
    windows = training_windows(
        {path.stem: read_events(path, Clock, ProcessSample) for path in paths}
    )
    return {path.stem: _LogUse(path, windows) for path in paths}


@dataclass
class _Track:
    """Running sums over the samples of one incarnation, or one machine, inside a window."""

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


class _LogUse:
    """What one log says about its process, and about its machine if it sampled that too."""

    def __init__(self, path: Path, windows: dict[int, TimeWindow]) -> None:
        self.sources: set[str] = set()
        clocks = _clocks(path)
        own: dict[tuple[int, int], _Track] = {}
        machines: dict[tuple[int, str], _Track] = {}
        for event in read_events(path, ProcessSample, HostSample):
            if not isinstance(event, ProcessSample | HostSample) or event.attempt not in windows:
                continue
            window = windows[event.attempt]
            clock = clocks.get(event.attempt) or RunClock(())
            if isinstance(event, ProcessSample):
                track = own.setdefault((event.attempt, event.pid), _Track(window))
                track.take(_process_point(event, clock))
            elif event.phase != "baseline" and event.energy_j is not None:
                track = machines.setdefault((event.attempt, event.host), _Track(window))
                track.take(_energy_point(event.energy_j, clock.at(event.mono_s)))
                if "energy" in track.used:
                    self.sources.add(event.energy_source)
        used = [track.used for track in own.values() if track.used]
        self.cpu_s = sum(one["user"] + one["system"] for one in used) if used else None
        self.peak_bytes = int(max((track.peak_bytes for track in own.values()), default=0.0))
        joules = [one.used["energy"] for one in machines.values() if "energy" in one.used]
        self.energy_j = sum(joules) if joules else None


# Only what is summed up: the points of `points` hold every core and interface.
def _process_point(sample: ProcessSample, clock: RunClock) -> Point:
    return Point(
        time_s=clock.at(sample.mono_s),
        totals={"user": sample.cpu_user_s, "system": sample.cpu_system_s},
        levels={"memory": sample.memory_bytes, "peak": sample.memory_peak_bytes},
    )


def _energy_point(energy_j: float, time_s: float) -> Point:
    return Point(time_s=time_s, totals={"energy": energy_j}, levels={"memory": 0.0})


def _clocks(path: Path) -> dict[int, RunClock]:
    readings: dict[int, list[Clock]] = {}
    for event in read_events(path, Clock):
        if isinstance(event, Clock):
            readings.setdefault(event.attempt, []).append(event)
    return {attempt: RunClock(events) for attempt, events in readings.items()}
