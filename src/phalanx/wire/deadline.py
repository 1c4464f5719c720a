"""Deadlines that name their activity, so that an expired wait can say what it waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass

from phalanx.errors import TimeoutExpired


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock by which an activity must be over.

    Attributes:
        activity: What is waited for, in words that fit after "waited for".
        limit_s: How long the wait was allowed to take.
        at: The moment itself.
    """

    activity: str
    limit_s: float
    at: float

    @classmethod
    def after(cls, limit_s: float, activity: str) -> Deadline:
        """Make a deadline that many seconds from now."""
        return cls(activity=activity, limit_s=limit_s, at=time.monotonic() + limit_s)

    @property
    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    @property
    def remaining_ms(self) -> int:
        """Milliseconds left, rounded up so that a poll does not spin at the very end."""
        return int(self.remaining_s * 1000) + (1 if self.remaining_s > 0 else 0)

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return time.monotonic() >= self.at

    def check(self) -> None:
        """Raise `TimeoutExpired` if the moment has passed."""
        if self.expired:
            raise self.error()

    def error(self) -> TimeoutExpired:
        """Return the exception to raise when the wait is given up."""
        return TimeoutExpired(
            f"waited {self.limit_s:g} s for {self.activity}, then gave up",
            activity=self.activity,
            limit_s=self.limit_s,
        )
