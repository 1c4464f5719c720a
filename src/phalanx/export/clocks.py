"""Align all processes and attempts of a run on one clock: the controller's, from its start.

Within an attempt `records.attempts.RunClock` converts a process's monotonic time to the
controller's. A resumed run has another controller, maybe after a reboot; the difference between its
wall time and its monotonic time joins the attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.records.attempts import RunClock
from phalanx.records.events import AnyEvent, Clock, HostSample, ProcessSample, Started, Watching
from phalanx.records.log import read_events

MARKERS = (Started, Clock, ProcessSample, Watching, HostSample)
"""Events that name the attempt that they and those after them belong to."""
CONTROLLER = "controller"


class AttemptClocks:
    """Converts times of all processes and attempts, from the markers of all logs.

    Args:
        logs: The event log of each process.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._clocks: dict[tuple[str, int], RunClock] = {}
        self._first: dict[tuple[str, int], AnyEvent] = {}
        earliest: dict[int, float] = {}
        for process, path in logs.items():
            self._read(process, read_events(path, *MARKERS), earliest)
        self._shift_s = self._join(earliest)
        self._origin_s = min(
            (earliest[attempt] + self._shift_s[attempt] for attempt in earliest), default=None
        )

    def _read(self, process: str, events: Iterable[AnyEvent], earliest: dict[int, float]) -> None:
        clocks: dict[int, list[AnyEvent]] = {}
        starts: dict[int, float] = {}
        for event in events:
            assert isinstance(event, MARKERS)
            if (process, event.attempt) not in self._first:
                self._first[process, event.attempt] = event
            begin_s = event.mono_s
            if isinstance(event, Started):
                begin_s -= event.startup_s
            starts[event.attempt] = min(begin_s, starts.get(event.attempt, begin_s))
            if isinstance(event, Clock):
                clocks.setdefault(event.attempt, []).append(event)
        for attempt, begin_s in starts.items():
            clock = RunClock(clocks.get(attempt, []))
            self._clocks[process, attempt] = clock
            begin_s = clock.at(begin_s)
            earliest[attempt] = min(begin_s, earliest.get(attempt, begin_s))

    def _join(self, earliest: Mapping[int, float]) -> dict[int, float]:
        """Return the offset from each attempt's controller time to the first attempt's."""
        bases = {attempt: self._base(attempt) for attempt in sorted(earliest)}
        first = next(iter(bases.values()), 0.0)
        # Without a reboot both attempts read the same monotonic clock, and wall time was adjusted
        # by less than this.
        return {
            attempt: 0.0 if abs(base - first) < 0.5 else base - first
            for attempt, base in bases.items()
        }

    def _base(self, attempt: int) -> float:
        """Return wall time minus the controller's monotonic time in an attempt."""
        firsts = {p: event for (p, number), event in self._first.items() if number == attempt}
        process = CONTROLLER if CONTROLLER in firsts else next(iter(firsts))
        event = firsts[process]
        return event.wall_s - self._clocks[process, attempt].at(event.mono_s)

    def at_ns(self, process: str, attempt: int, mono_s: float) -> int:
        """Return nanoseconds since the start of the run."""
        clock = self._clocks.get((process, attempt))
        time_s = mono_s if clock is None else clock.at(mono_s)
        if self._origin_s is None:
            # A run that failed before any process had joined.
            self._origin_s = time_s
        return max(0, round((time_s + self._shift_s.get(attempt, 0.0) - self._origin_s) * 1e9))
