"""Count lost processes by rate, and delay the successor of one that is lost again and again.

Pure: the caller passes the time. A run of a month may lose a process every day; one that crashes in
a loop is given up, slowly enough that a machine which only restarts is back by then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from phalanx.control.failure_policy import ProcessFailure
from phalanx.errors import ExitCode
from phalanx.spec.strategy import FailureLimit

# The first successor starts at once; then each waits twice as long as the one before.
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0


class FailureBudget:
    """Losses of a run within the last `limit.window_s` seconds.

    Args:
        limit: Losses that are tolerated, and the time after which one is forgotten.
    """

    def __init__(self, limit: FailureLimit) -> None:
        self._limit = limit
        self._losses: deque[tuple[float, str]] = deque()

    def note(self, failure: ProcessFailure, now_s: float) -> ProcessFailure | None:
        """Count a loss; returns why the run is given up if it is one too many."""
        while self._losses and now_s - self._losses[0][0] >= self._limit.window_s:
            self._losses.popleft()
        self._losses.append((now_s, failure.process))
        if len(self._losses) <= self._limit.count:
            return None
        cause = (
            f"{failure.cause}; that is loss number {len(self._losses)} within "
            f"{self._limit.window_s:g} s ({self._limit.section}.failure_window_s), and "
            f"{self._limit.section}.max_failures allows {self._limit.count}"
        )
        return replace(failure, cause=cause, exit_code=ExitCode.WORKER_LOST)

    def delay_s(self, process: str) -> float:
        """Return how long to wait before the successor of a process that was just lost starts."""
        number = sum(name == process for _, name in self._losses)
        if number < 2:
            return self._limit.first_delay_s
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (number - 2)))
