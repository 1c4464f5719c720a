"""Separate waiting from communication while a run goes on.

In a synchronous group the last to arrive at an exchange does not wait, so the shortest exchange of
a step is communication and the rest of the others' is waiting (`records.step_phases`). The logs of
the workers arrive one after the other: a step is held until all have reported it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from phalanx.dashboard.series import PhaseSums
from phalanx.records.events import Stall, Step

MAX_HELD = 200_000
"""Exchanges; beyond that the oldest step is settled among those who have reported it."""

Settle = Callable[[str, float, float, PhaseSums], None]
"""Takes worker, begin and end of the exchange, and its sums."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    worker: str
    begin_s: float
    end_s: float
    seconds: float


@dataclass
class ExchangeSplitter:
    """Holds the exchanges of steps until they can be compared.

    Args:
        num_workers: Workers that report each step.
        settle: Called with the communication and waiting of a worker in an exchange.
    """

    num_workers: int
    settle: Settle
    held: dict[tuple[object, ...], list[_Exchange]] = field(default_factory=dict)
    num_held: int = 0

    def take(self, worker: str, attempt: int, event: Step | Stall, end_s: float) -> None:
        """Take the exchange of a step or stall."""
        seconds = event.exchange_s if isinstance(event, Step) else event.duration_s
        one = _Exchange(worker, end_s - seconds, end_s, seconds)
        if event.wait_s is not None:
            self._settle(one, seconds - event.wait_s)
            return
        key: tuple[object, ...] = (
            (attempt, "step", event.step)
            if isinstance(event, Step)
            else (attempt, event.what, event.epoch)
        )
        group = self.held.setdefault(key, [])
        if any(other.worker == worker for other in group):
            # Reported again, by a process that was started anew.
            self._settle_group(key)
            group = self.held.setdefault(key, [])
        group.append(one)
        self.num_held += 1
        if len(group) >= self.num_workers:
            self._settle_group(key)
        elif self.num_held > MAX_HELD:
            self._settle_group(next(iter(self.held)))

    def finish(self) -> None:
        """Settle what is held: nobody else will report it."""
        for key in list(self.held):
            self._settle_group(key)

    def _settle_group(self, key: tuple[object, ...]) -> None:
        group = self.held.pop(key)
        self.num_held -= len(group)
        shortest = min(one.seconds for one in group)
        for one in group:
            self._settle(one, shortest)

    def _settle(self, one: _Exchange, communication_s: float) -> None:
        sums = PhaseSums(communication_s=communication_s, wait_s=one.seconds - communication_s)
        self.settle(one.worker, one.begin_s, one.end_s, sums)
