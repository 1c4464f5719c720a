"""How much of an exchange hides behind the computation, as well as Gloo lets us know.

Gloo's threads tell whether an exchange is over, not when it ended; it is looked at when the next
bucket is ready and when backward is over. A stretch between two looks counts in full if something
was still on its way at its end, and half if everything had arrived by then: the true figure lies
within half of those stretches. Time in which a peer had not begun yet counts as well, because the
exchange is under way for this worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from phalanx.comm.base import Pending


class Overlap:
    """Watches the exchanges of one step, from the first bucket to the end of backward."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """A new step begins; nothing is on its way."""
        self._began_s = None
        self._seconds = 0.0

    def look(self, pending: Sequence[Pending]) -> None:
        """Called right before the next exchange is started, with those started before."""
        now_s = time.perf_counter()
        if self._began_s is not None and pending:
            share = 0.5 if all(one.is_done() for one in pending) else 1.0
            self._seconds += share * (now_s - self._began_s)
        self._began_s = now_s

    def end(self, pending: Sequence[Pending]) -> float:
        """Backward is over: the seconds in which something was on its way behind it."""
        self.look(pending)
        return self._seconds
