"""Deadlines that name their activity, so that an expired wait can say what it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from phalanx.errors import TimeoutExpired


@dataclass
class Deadline:
    """A moment on the monotonic clock by which an activity must be over.

    Attributes:
        activity: What is waited for, in words that fit after "waited for".
        limit_s: How long the wait was allowed to take.
        at: The moment itself.
        setting: Setting of the job that the limit comes from; empty: none.
    """

    activity: str
    limit_s: float
    at: float
    setting: str = ""

    @classmethod
    def after(cls, limit_s: float, activity: str, *, setting: str = "") -> Deadline:
        """Make a deadline that many seconds from now."""
        at = time.monotonic() + limit_s
        return cls(activity=activity, limit_s=limit_s, at=at, setting=setting)

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
        return self.remaining_s <= 0.0

    def check(self) -> None:
        """Raise `TimeoutExpired` if the moment has passed."""
        if self.expired:
            raise self.error()

    def error(self) -> TimeoutExpired:
        """Return the exception to raise when the wait is given up."""
        setting = f"; {self.setting} sets how long" if self.setting else ""
        return TimeoutExpired(
            f"waited {self.limit_s:g} s for {self.activity}, then gave up{setting}",
            activity=self.activity,
            limit_s=self.limit_s,
        )


class IdleDeadline(Deadline):
    """A deadline that begins anew while things move: it limits the time without, not the total.

    Args:
        limit_s: How long nothing may move.
        activity: As in `Deadline`.
        setting: Setting of the job that the limit comes from.
        is_moving: Returns whether what is waited for is under way, slow as it may be.
    """

    def __init__(
        self, limit_s: float, activity: str, *, setting: str, is_moving: Callable[[], bool]
    ) -> None:
        super().__init__(activity, limit_s, at=time.monotonic() + limit_s, setting=setting)
        self._is_moving = is_moving

    @property
    @override
    def remaining_s(self) -> float:
        if self._is_moving():
            self.at = time.monotonic() + self.limit_s
        return super().remaining_s
