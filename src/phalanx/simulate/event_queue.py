"""Advance virtual time: an event queue, and resources that serve first come, first served.

Knows nothing of training. Simultaneous events run in the order in which they were scheduled, so
equal seeds give equal runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Pending events and the current virtual time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, time_s: float, action: Action) -> None:
        """Schedule an event at a time that is not past."""
        self._count += 1
        # The count breaks ties: actions themselves cannot be compared.
        heapq.heappush(self._heap, (time_s, self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Schedule an event after a delay."""
        self.at(self.now_s + delay_s, action)

    def run(self) -> None:
        """Run events until none is left."""
        heap = self._heap
        while heap:
            self.now_s, _, action = heapq.heappop(heap)
            self.num_events += 1
            action()


class FifoResource:
    """Resource with a FIFO queue: a direction of a port, a processor."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.busy_s = 0.0
        """Total service time, including accepted requests that lie ahead."""

    def serve(self, now_s: float, duration_s: float) -> float:
        """Enqueue a request now; return the time of its completion."""
        self.free_s = max(now_s, self.free_s) + duration_s
        self.busy_s += duration_s
        return self.free_s

    def busy_until(self, now_s: float) -> float:
        """Return the time served up to this moment."""
        return self.busy_s - max(0.0, self.free_s - now_s)
