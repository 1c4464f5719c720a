"""Compute resource use of processes and machines during training from stored samples; pure.

Everything is clipped to the windows of the run, from the first training step of an attempt to its
last; evaluation between two epochs lies inside, start-up and the final test outside. Reports,
charts and `phalanx runs show` call it; the summary takes its sums from `total_use`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from phalanx.records.attempts import Logs, RunClock, by_attempt
from phalanx.records.events import AnyEvent, Clock, HostSample, ProcessSample
from phalanx.records.points import CORE, RECEIVED, SENT, host_point, process_point
from phalanx.records.tracks import (
    Point,
    Stretch,
    TimeWindow,
    add_up,
    clip,
    highest_levels,
    mean_levels,
    subtract,
)

Windows = Mapping[int, TimeWindow]
"""When each attempt trained, on the controller's clock of that attempt."""


class UsePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Use between two samples, for charts."""

    t_s: float
    """End of the interval, in seconds of training since the first window began."""
    cpu_cores: float
    """Busy cores: 1.0 is one core all the time."""
    cpu_share: float | None
    """Of the machine, 0 to 1."""
    memory_bytes: float
    received_bytes_per_s: dict[str, float]
    sent_bytes_per_s: dict[str, float]
    watts: float | None = None
    load: float | None = None
    """Processes that run or wait to, of a machine."""


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of a process, or a whole machine, while the run trained.

    `received_bytes` and `sent_bytes` are by interface and known for machines only. Disk bytes and
    energy are None where the system does not report them.
    """

    name: str
    host: str
    duration_s: float
    """Training time that the samples cover."""
    cores: int | None
    """Of the machine."""
    cpu_user_s: float
    cpu_system_s: float
    cpu_cores: float
    """Mean of busy cores."""
    cpu_share: float | None
    """Mean share of the machine, 0 to 1."""
    core_shares: list[float]
    """Mean share of each core."""
    load_mean: float | None
    memory_mean_bytes: float
    memory_peak_bytes: int
    memory_total_bytes: int | None
    received_bytes: dict[str, int]
    sent_bytes: dict[str, int]
    read_bytes: int | None
    written_bytes: int | None
    cpu_stolen_s: float = 0.0
    energy_j: float | None = None
    energy_source: str = ""
    group_cpu_s: float | None = None
    """Use of the container around this process, if it has a limit."""
    group_memory_peak_bytes: int | None = None
    baseline_subtracted: bool = False
    series: list[UsePoint]

    @property
    def cpu_s(self) -> float:
        """Processor time, user and system."""
        return self.cpu_user_s + self.cpu_system_s


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


def training_windows(logs: Mapping[str, Iterable[AnyEvent]]) -> dict[int, TimeWindow]:
    """Return when each attempt trained: from the first worker's first step to the last one's last.

    Logs are read once, one after the other; only clock readings of one process are held.
    """
    windows: dict[int, TimeWindow] = {}
    for events in logs.values():
        readings: dict[int, list[Clock]] = {}
        spans: dict[tuple[int, int], _Span] = {}
        for event in events:
            if isinstance(event, Clock):
                readings.setdefault(event.attempt, []).append(event)
            elif isinstance(event, ProcessSample):
                spans.setdefault((event.attempt, event.pid), _Span()).take(event)
        for (attempt, _), span in spans.items():
            if span.begin_s is None:
                continue
            clock = RunClock(readings.get(attempt, ()))
            begin_s, end_s = clock.at(span.begin_s), clock.at(span.end_s)
            known = windows.get(attempt, TimeWindow(begin_s, end_s))
            windows[attempt] = TimeWindow(min(known.begin_s, begin_s), max(known.end_s, end_s))
    return windows


def process_uses(logs: Logs, windows: Windows | None = None) -> dict[str, ResourceUse]:
    """Return resource use of each process, its children included, by process.

    Args:
        logs: All events of the run, by process.
        windows: When it trained; None: the result of `training_windows`.
    """
    windows = training_windows(logs) if windows is None else windows
    attempts = by_attempt(logs)
    cores = _cores(logs)
    uses: dict[str, ResourceUse] = {}
    for process in logs:
        tracks: list[tuple[int, list[Point]]] = []
        peaks: list[float] = []
        host = ""
        for attempt, window in windows.items():
            events = attempts.get(attempt, {}).get(process, [])
            clock = RunClock(events)
            for samples in _lives(events).values():
                host = samples[-1].host
                points = [process_point(sample, clock) for sample in samples]
                tracks.append((attempt, points))
                peaks.append(_peak(points, window))
        use = _use(process, host, cores.get(host), tracks, windows)
        if use is not None:
            uses[process] = msgspec.structs.replace(use, memory_peak_bytes=int(max(peaks)))
    return uses


def host_uses(
    logs: Logs, windows: Windows | None = None, *, subtract_baseline: bool = False
) -> dict[str, ResourceUse]:
    """Return resource use of each machine, by its name.

    Args:
        logs: All events of the run, by process.
        windows: When it trained; None: the result of `training_windows`.
        subtract_baseline: Subtract the use per second of the idle machine before the work began,
            where it was sampled; never below zero.
    """
    windows = training_windows(logs) if windows is None else windows
    tracks: dict[str, list[tuple[int, list[Point]]]] = {}
    idle: dict[str, list[Stretch]] = {}
    latest: dict[str, HostSample] = {}
    for attempt, processes in by_attempt(logs).items():
        for events in processes.values():
            clock = RunClock(events)
            samples: dict[tuple[str, str], list[HostSample]] = {}
            for event in events:
                if isinstance(event, HostSample):
                    samples.setdefault((event.host, event.phase), []).append(event)
                    latest[event.host] = event
            for (host, phase), own in samples.items():
                points = [host_point(sample, clock) for sample in own]
                if phase == "baseline":
                    whole = TimeWindow(points[0].time_s, points[-1].time_s)
                    idle.setdefault(host, []).extend(clip(points, whole))
                else:
                    tracks.setdefault(host, []).append((attempt, points))
    uses: dict[str, ResourceUse] = {}
    for host, sample in latest.items():
        baseline = idle.get(host, []) if subtract_baseline else []
        cores = len(sample.core_busy_s)
        use = _use(host, host, cores, tracks.get(host, []), windows, idle=baseline)
        if use is not None:
            uses[host] = msgspec.structs.replace(
                use,
                memory_total_bytes=sample.memory_total_bytes,
                energy_source=sample.energy_source if use.energy_j is not None else "",
            )
    return uses


def _lives(events: Sequence[AnyEvent]) -> dict[int, list[ProcessSample]]:
    """Return the samples of each incarnation of a process, by its pid."""
    lives: dict[int, list[ProcessSample]] = {}
    for event in events:
        if isinstance(event, ProcessSample):
            lives.setdefault(event.pid, []).append(event)
    return lives


def _cores(logs: Logs) -> dict[str, int]:
    return {
        event.host: len(event.core_busy_s)
        for events in logs.values()
        for event in events
        if isinstance(event, HostSample)
    }


def _peak(points: Sequence[Point], window: TimeWindow) -> float:
    """Return the peak memory inside a window.

    The system reports the peak since the process started: it counts if it rose inside the window.
    """
    inside = [p for p in points if window.begin_s <= p.time_s <= window.end_s]
    if not inside:
        return 0.0
    peaks = [p.levels["peak"] for p in inside]
    seen = max(p.levels["memory"] for p in inside)
    return max(seen, peaks[-1]) if peaks[-1] > peaks[0] else seen


def _use(
    name: str,
    host: str,
    cores: int | None,
    tracks: Sequence[tuple[int, list[Point]]],
    windows: Windows,
    *,
    idle: Sequence[Stretch] = (),
) -> ResourceUse | None:
    stretches: list[Stretch] = []
    series: list[UsePoint] = []
    begins = _begins(windows)
    for attempt, points in tracks:
        if attempt in windows:
            own = [subtract(stretch, idle) for stretch in clip(points, windows[attempt])]
            stretches += own
            series += [_use_point(stretch, cores, begins[attempt]) for stretch in own]
    if not stretches:
        return None
    used, levels, highest = add_up(stretches), mean_levels(stretches), highest_levels(stretches)
    duration_s = sum(stretch.duration_s for stretch in stretches)
    busy = (used["user"] + used["system"]) / duration_s
    return ResourceUse(
        name=name,
        host=host,
        duration_s=duration_s,
        cores=cores,
        cpu_user_s=used["user"],
        cpu_system_s=used["system"],
        cpu_stolen_s=used.get("stolen", 0.0),
        cpu_cores=busy,
        cpu_share=busy / cores if cores else None,
        core_shares=[total / duration_s for total in _named(used, CORE).values()],
        load_mean=levels.get("load"),
        memory_mean_bytes=levels["memory"],
        memory_peak_bytes=int(highest["memory"]),
        memory_total_bytes=None,
        received_bytes={k: round(v) for k, v in _named(used, RECEIVED).items()},
        sent_bytes={k: round(v) for k, v in _named(used, SENT).items()},
        read_bytes=_rounded(used.get("read")),
        written_bytes=_rounded(used.get("written")),
        energy_j=used.get("energy"),
        group_cpu_s=used.get("group"),
        group_memory_peak_bytes=_rounded(highest.get("group memory")),
        baseline_subtracted=bool(idle),
        series=series,
    )


def _use_point(stretch: Stretch, cores: int | None, begin_s: float) -> UsePoint:
    rates = {name: amount / stretch.duration_s for name, amount in stretch.used.items()}
    busy = rates["user"] + rates["system"]
    return UsePoint(
        t_s=stretch.end_s - begin_s,
        cpu_cores=busy,
        cpu_share=busy / cores if cores else None,
        memory_bytes=stretch.levels["memory"],
        received_bytes_per_s=_named(rates, RECEIVED),
        sent_bytes_per_s=_named(rates, SENT),
        watts=rates.get("energy"),
        load=stretch.levels.get("load"),
    )


def _begins(windows: Windows) -> dict[int, float]:
    """Return the start of each attempt on a time axis without the breaks between them."""
    begins: dict[int, float] = {}
    before_s = 0.0
    for attempt, window in sorted(windows.items()):
        begins[attempt] = window.begin_s - before_s
        before_s += window.duration_s
    return begins


def _named(amounts: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in amounts.items() if k.startswith(prefix)}


def _rounded(amount: float | None) -> int | None:
    return None if amount is None else round(amount)
