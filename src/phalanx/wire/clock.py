"""Finding out how two monotonic clocks stand to each other, as NTP does it; no sockets here.

One side notes t0, asks, the other answers with its time s, the first notes t1. If both ways take
equally long, the other's clock is ahead by s - (t0 + t1) / 2; whatever the ways take, that is right
to within (t1 - t0) / 2. Of several exchanges the quickest one counts, because delays by a busy
machine only ever make an exchange slower.
"""

from __future__ import annotations

from dataclasses import dataclass

_EXCHANGES = 8
# The first round meets a busy start-up; clocks drift by some ten microseconds in a second.
_SECOND_ROUND_S = 5.0
_ROUND_S = 30.0
_GIVE_UP_S = 5.0


@dataclass(frozen=True)
class ClockReading:
    """The other's clock is ahead by the offset, give or take the error."""

    offset_s: float
    error_s: float


class ClockProbe:
    """Decides when to ask, and what the answers mean."""

    def __init__(self) -> None:
        self._asked_s: float | None = None
        self._answers: list[ClockReading] = []
        self._next_s = 0.0
        self._pause_s = _SECOND_ROUND_S

    def ask(self, now_s: float) -> bool:
        """Whether a question stamped with this moment should be sent."""
        if self._asked_s is not None and now_s - self._asked_s < _GIVE_UP_S:
            return False
        if now_s < self._next_s:
            return False
        self._asked_s = now_s
        return True

    def take(self, asked_s: float, theirs_s: float, now_s: float) -> ClockReading | None:
        """Note an answer; the last one of a round brings the reading."""
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
