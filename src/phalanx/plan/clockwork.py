"""Made-up time: an agenda of what happens next, and lines that serve one after the other.

Nothing here knows of training. Equal seeds give equal runs: what is due at the same moment happens
in the order in which it was put down.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Happening = Callable[[], None]


class Agenda:
    """What is still to happen."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_happenings = 0
        self._heap: list[tuple[float, int, Happening]] = []
        self._count = 0

    def at(self, time_s: float, happening: Happening) -> None:
        """Put something down for a moment that is not past."""
        self._count += 1
        heapq.heappush(self._heap, (time_s, self._count, happening))

    def after(self, delay_s: float, happening: Happening) -> None:
        """Put something down for later."""
        self.at(self.now_s + delay_s, happening)

    def run(self, until: Callable[[], bool]) -> None:
        """Let things happen until a condition holds, or nothing is left."""
        heap = self._heap
        while heap and not until():
            self.now_s, _, happening = heapq.heappop(heap)
            self.num_happenings += 1
            happening()


class Line:
    """Something that serves one after the other: a direction of a wire, a processor."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.busy_s = 0.0
        """Served in all, including what has been promised but lies ahead."""

    def serve(self, now_s: float, duration_s: float) -> float:
        """Queue up now; returns when it will be done."""
        self.free_s = max(now_s, self.free_s) + duration_s
        self.busy_s += duration_s
        return self.free_s

    def busy_until(self, now_s: float) -> float:
        """Served up to this moment."""
        return self.busy_s - max(0.0, self.free_s - now_s)
