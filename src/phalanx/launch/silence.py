"""Count for how long nothing was heard of each machine, on undisturbed time of this process alone.

A process that was suspended, or waited for a disk, has heard nothing in the meantime either; such a
stretch counts as one short tick, so that it costs no machine its place in the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_TICK_S = 0.5
"""A longer pause between two calls is this process's own."""


class SilenceMeter:
    """Silence of machines.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = clock()
        self._elapsed_s = 0.0
        self._heard_s: dict[str, float] = {}
        self._silent_s: dict[str, float] = {}

    def tick(self) -> None:
        """Begin a round; called several times a second, before `silent_s`."""
        now = self._clock()
        self._elapsed_s = min(now - self._last_s, LONGEST_TICK_S)
        self._last_s = now

    def silent_s(self, machine: str, heard_s: float, *, is_held_up: bool = False) -> float:
        """Return the silence of a machine; called once per round.

        Args:
            machine: Its name.
            heard_s: When something was heard of it last; only a change matters.
            is_held_up: Whether this process does not listen to it at present.
        """
        if self._heard_s.get(machine) != heard_s or is_held_up:
            self._heard_s[machine] = heard_s
            self._silent_s[machine] = 0.0
        else:
            self._silent_s[machine] += self._elapsed_s
        return self._silent_s[machine]
