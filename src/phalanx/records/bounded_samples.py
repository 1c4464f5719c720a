"""Keep a bounded number of a run's samples, so that a run of weeks is shown in little memory.

Samples hold totals: sums over a run stay exact when samples in between are left out. Of two
neighbours the one with more memory in use is kept, so that the highest use stays exact as well;
means of memory and load become those of fewer moments. Called by reports and `phalanx runs show`.
"""

from __future__ import annotations

from pathlib import Path

from phalanx.records.events import AnyEvent, Clock, HostSample, ProcessSample
from phalanx.records.log import read_events

SampleEvent = Clock | ProcessSample | HostSample

MOST_SAMPLES = 512
"""Of one incarnation of a process, or of one machine in one attempt; more than a chart shows."""


class BoundedSamples:
    """Samples and clock readings of one process's log.

    Args:
        most: Of each kind and source.
    """

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._most = most
        self._by_source: dict[tuple[object, ...], list[SampleEvent]] = {}

    def add(self, event: SampleEvent) -> None:
        """Take the next event of the log."""
        kept = self._by_source.setdefault(_source(event), [])
        kept.append(event)
        if len(kept) > self._most:
            kept[:] = _halved(kept)

    def events(self) -> list[AnyEvent]:
        """Return what was kept, in order for each source."""
        return [event for kept in self._by_source.values() for event in kept]


def read_samples(folder: Path, most: int = MOST_SAMPLES) -> dict[str, list[AnyEvent]]:
    """Read samples and clock readings of every process of a run, by process.

    Args:
        folder: The run directory's `events`.
        most: Of each kind and source.
    """
    found: dict[str, list[AnyEvent]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        samples = BoundedSamples(most)
        for event in read_events(path, Clock, ProcessSample, HostSample):
            if isinstance(event, SampleEvent):
                samples.add(event)
        found[path.stem] = samples.events()
    return found


def _source(event: SampleEvent) -> tuple[object, ...]:
    """Return what only events of one series of totals have in common."""
    match event:
        case ProcessSample():
            return ProcessSample, event.attempt, event.pid
        case HostSample():
            return HostSample, event.attempt, event.host, event.phase
        case Clock():
            return Clock, event.attempt


def _halved(events: list[SampleEvent]) -> list[SampleEvent]:
    """Keep every second event, and those that bound what is summed up."""
    marks = [index for index, event in enumerate(events) if _moment(event)]
    begins = [index for index in marks if _moment(events[index]) == "begin"]
    bounds = {0, len(events) - 1, *begins[:1], *marks[-1:]}
    kept: list[SampleEvent] = []
    waiting: SampleEvent | None = None
    for index, event in enumerate(events):
        if index in bounds:
            if waiting is not None:
                kept.append(waiting)
            kept.append(event)
            waiting = None
        elif waiting is None:
            waiting = event
        else:
            kept.append(max(waiting, event, key=_weight))
            waiting = None
    return kept


def _moment(event: SampleEvent) -> str:
    return event.moment if isinstance(event, ProcessSample) else ""


def _weight(event: SampleEvent) -> float:
    """Return by what the better of two neighbours is chosen."""
    match event:
        case ProcessSample():
            return event.memory_bytes
        case HostSample():
            return event.memory_used_bytes
        case Clock():
            return -event.error_s
