"""Estimate the offset between two monotonic clocks, as NTP does; no sockets here.

One side notes t0 and asks, the other answers with its time s, the first notes t1. If both ways take
equally long, the other clock is ahead by s - (t0 + t1) / 2; in any case that is right to within
(t1 - t0) / 2. Of several exchanges the fastest counts, because a busy machine only adds delay.
"""

from __future__ import annotations

from dataclasses import dataclass

_EXCHANGES = 8
# The first round meets a busy start-up; clocks drift by some ten microseconds per second.
_SECOND_ROUND_S = 5.0
_ROUND_S = 30.0
_GIVE_UP_S = 5.0


@dataclass(frozen=True)
class ClockReading:
    """Offset by which the other clock is ahead, with its error bound."""

    offset_s: float
    error_s: float


class ClockProbe:
    """Schedule the exchanges, and estimate the offset from their answers."""

    def __init__(self) -> None:
        self._asked_s: float | None = None
        self._answers: list[ClockReading] = []
        self._next_s = 0.0
        self._pause_s = _SECOND_ROUND_S

    def ask(self, now_s: float) -> bool:
        """Return whether to send a question with this time stamp now."""
        if self._asked_s is not None and now_s - self._asked_s < _GIVE_UP_S:
            return False
        if now_s < self._next_s:
            return False
        self._asked_s = now_s
        return True

    def take(self, asked_s: float, theirs_s: float, now_s: float) -> ClockReading | None:
        """Note an answer; returns the estimate after the last one of a round."""
        if asked_s != self._asked_s:
            return None
        self._asked_s = None
        self._answers.append(
            ClockReading(theirs_s - (asked_s + now_s) / 2, error_s=(now_s - asked_s) / 2)
        )
        if len(self._answers) < _EXCHANGES:
            return None
        best = min(self._answers, key=lambda one: one.error_s)
        self._answers.clear()
        self._next_s = now_s + self._pause_s
        self._pause_s = _ROUND_S
        return best
