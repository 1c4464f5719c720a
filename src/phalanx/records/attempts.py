"""Assign events to attempts, and convert their times to the controller's clock.

A resumed run appends to the logs of the attempts before it, maybe after a reboot or on another
machine, so monotonic times can only be compared within one attempt. Called by readers of timelines,
resources and phases.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from phalanx.records.events import (
    AnyEvent,
    Clock,
    HostSample,
    ProcessSample,
    Started,
    Watching,
)

# Largest accepted error of a reading, as a multiple of the smallest.
_POOR = 4.0

Logs = Mapping[str, Sequence[AnyEvent]]
"""The events of each process of a run, oldest first."""


def split_attempts(events: Iterable[AnyEvent]) -> dict[int, list[AnyEvent]]:
    """Split the events of one process by attempt; an event without one belongs to the last seen."""
    attempt = 1
    parts: dict[int, list[AnyEvent]] = {}
    for event in events:
        if isinstance(event, Started | Clock | ProcessSample | Watching | HostSample):
            attempt = event.attempt
        parts.setdefault(attempt, []).append(event)
    return parts


def by_attempt(logs: Logs) -> dict[int, dict[str, list[AnyEvent]]]:
    """Return the events of each attempt, by process."""
    parts: dict[int, dict[str, list[AnyEvent]]] = {}
    for process, events in logs.items():
        for attempt, part in split_attempts(events).items():
            parts.setdefault(attempt, {})[process] = part
    return dict(sorted(parts.items()))


class RunClock:
    """Converts one process's monotonic time to the controller's, within one attempt.

    Between two measurements the offset is interpolated, because clocks drift apart (some ten
    microseconds in a second). An offset within its error is taken as zero: on one machine all
    processes read the same clock, and measurement noise must not separate them. Readings much worse
    than the best one are left out.

    Args:
        events: Of one process and attempt; without `Clock` events its clock is the controller's.
    """

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        clocks = [event for event in events if isinstance(event, Clock)]
        limit_s = _POOR * min((clock.error_s for clock in clocks), default=0.0)
        clocks = [clock for clock in clocks if clock.error_s <= limit_s]
        self._times_s = [clock.mono_s for clock in clocks]
        self._offsets_s = [
            clock.offset_s if abs(clock.offset_s) > clock.error_s else 0.0 for clock in clocks
        ]

    def at(self, mono_s: float) -> float:
        """Convert a monotonic time of this process to the controller's."""
        return mono_s + self.offset_at(mono_s)

    def offset_at(self, mono_s: float) -> float:
        """Return the offset to add to this process's time at a moment."""
        if not self._times_s:
            return 0.0
        after = bisect_right(self._times_s, mono_s)
        if after in (0, len(self._times_s)):
            return self._offsets_s[max(0, after - 1)]
        begin_s, end_s = self._times_s[after - 1 : after + 1]
        first, second = self._offsets_s[after - 1 : after + 1]
        return first + (second - first) * (mono_s - begin_s) / (end_s - begin_s)
