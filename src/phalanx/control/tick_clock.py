"""Measure time as the controller's loop lives through it, without its own delays.

A controller that was suspended, or blocked by a slow disk, has heard nothing of its processes: that
is no silence of theirs. Deadlines of processes count in this time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# A longer tick is the controller's own delay.
_LONGEST_TICK_S = 0.5
# Own delays of at least this length are told; shorter ones are everyday life on a busy machine.
_PAUSE_S = 3.0
# A machine that gives up on a silent controller is noticed within this time.
_AFTERMATH_S = 15.0


class TickClock:
    """Time of the controller's loop.

    Attributes:
        elapsed_s: Time since the start; each tick counts half a second at most.

    Args:
        clock: Returns the true time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = clock()
        self._pause_s = 0.0
        self._pause_ended_s: float | None = None
        self.elapsed_s = 0.0

    def tick(self) -> float:
        """Return the time since the last tick as it counts for processes."""
        now_s = self._clock()
        true_s, self._last_s = now_s - self._last_s, now_s
        counted_s = min(true_s, _LONGEST_TICK_S)
        self.elapsed_s += counted_s
        if true_s >= _PAUSE_S:
            self._pause_s, self._pause_ended_s = true_s, self.elapsed_s
        return counted_s

    def skip(self) -> None:
        """Leave out the time since the last tick: the controller knows what it did in it."""
        self._last_s = self._clock()

    @property
    def new_pause_s(self) -> float | None:
        """Length of the pause that the last tick ended; None: it was an ordinary tick."""
        return self._pause_s if self._pause_ended_s == self.elapsed_s else None

    @property
    def recent_pause_s(self) -> float | None:
        """Length of a pause whose consequences may still show; None: there was none lately."""
        ended_s = self._pause_ended_s
        if ended_s is None or self.elapsed_s - ended_s > _AFTERMATH_S:
            return None
        return self._pause_s
