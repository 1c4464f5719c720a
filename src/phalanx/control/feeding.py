"""Keeping workers fed with tickets: who is hungry, what was given, and that nobody waits in vain.

The dispatcher keeps account of tickets; this is where it meets the wishes of workers and the rules
of the strategy. Where every update takes a gradient of everyone, all must push equally often, with
samples or without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from phalanx.control.coordinator import Desk
from phalanx.control.crew import Crew
from phalanx.control.dispatch import Dispatcher
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.serving import Completed, Pause, Work, WorkDone
from phalanx.wire.tickets import TicketPlan

# Without a finished batch for so long, a round lacks gradients that nobody is going to send.
_STUCK_S = 1.0


class Feeder:
    """Gives the workers of one strategy their tickets.

    Args:
        spec: The strategy's settings.
        plan: The numbering of tickets.
        crew: Who is there.
        desk: Who sends.
    """

    def __init__(
        self, spec: ParameterServerSpec, plan: TicketPlan, *, crew: Crew, desk: Desk
    ) -> None:
        self._in_rounds = goes_in_rounds(spec, plan.num_parts)
        self._held_back = is_held_back(spec, plan.num_parts)
        # In rounds nobody can run ahead, and one of each part makes a round one global batch.
        static = spec.dispatch == "static" or self._in_rounds or plan.portions is not None
        self._dispatcher = Dispatcher(plan, static=static)
        self._crew = crew
        self._desk = desk
        self._is_open = False
        self._hungry: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._last_progress = time.monotonic()

    @property
    def is_drained(self) -> bool:
        """Whether every ticket up to the gate is done."""
        return self._dispatcher.is_drained

    def open(self, first: int, stop: int, statistics: bytes) -> None:
        """Let tickets from `first` to before `stop` be handed out, and begin with it."""
        self._is_open = True
        self._dispatcher.open_gate(first, stop)
        self._given.clear()
        for worker in list(self._hungry):
            self.feed(worker, statistics=statistics)

    def close(self) -> None:
        """Nothing is handed out until the next gate is opened."""
        self._is_open = False

    def shorten(self) -> int:
        """Hand out no more than belongs to batches that are begun; the first ticket beyond."""
        return self._dispatcher.shorten_gate()

    def want(self, worker: int, count: int, statistics: bytes) -> None:
        """A worker has room for so many tickets."""
        self._hungry[worker] = count
        self.feed(worker, statistics=statistics)

    def count(self, worker: int, message: WorkDone) -> list[Completed]:
        """A worker is done with tickets; those of them that count."""
        self._last_progress = time.monotonic()
        if message.want > 0:
            self._hungry[worker] = message.want
        return [one for one in message.completed if self._dispatcher.complete(worker, one.ticket)]

    def lose(self, worker: int) -> int:
        """A worker is gone: give what it held to others; returns how many tickets that were."""
        self._hungry.pop(worker, None)
        self._given.pop(worker, None)
        returned = self._dispatcher.give_back(worker)
        for other in list(self._hungry):
            self.feed(other)
        return len(returned)

    def feed(self, worker: int, *, statistics: bytes = b"") -> None:
        """Give a worker as many tickets as it has asked for, or see to it that nobody waits."""
        if not self._is_open or worker not in self._hungry or worker not in self._crew.workers:
            return
        workers = self._crew.workers
        count = min(self._hungry[worker], self._dispatcher.fair_share(len(workers)))
        tickets = self._dispatcher.take(worker, count, workers)
        if not tickets and self._in_rounds and not self._dispatcher.holds(worker):
            most = max((self._given.get(other, 0) for other in workers), default=0)
            tickets = [0] * min(count, most - self._given.get(worker, 0))
        if tickets:
            self._give(worker, tickets, statistics)
        elif self._held_back and not self._dispatcher.holds(worker):
            self._desk.send(f"worker-{worker}", Pause(leave=True))

    def nudge(self) -> None:
        """After losses rounds may not come out even: have the idle take part without samples."""
        now = time.monotonic()
        if self._is_open and self._in_rounds and now - self._last_progress > _STUCK_S:
            self._last_progress = now
            for worker in [w for w in self._hungry if not self._dispatcher.holds(w)]:
                self._give(worker, [0])

    def _give(self, worker: int, tickets: Sequence[int], statistics: bytes = b"") -> None:
        self._given[worker] = self._given.get(worker, 0) + len(tickets)
        left = self._hungry.get(worker, 0) - len(tickets)
        if left > 0:
            self._hungry[worker] = left
        else:
            self._hungry.pop(worker, None)
        self._desk.send(f"worker-{worker}", Work(tuple(tickets), statistics))


def goes_in_rounds(spec: ParameterServerSpec, num_workers: int) -> bool:
    """Whether every update takes a gradient of every worker."""
    return spec.synchronous or ((spec.k or 0) >= num_workers > 1 and spec.consistency == "k_sync")


def is_held_back(spec: ParameterServerSpec, num_workers: int) -> bool:
    """Whether others would wait for a worker that has nothing to do."""
    return not goes_in_rounds(spec, num_workers) and spec.consistency not in ("async", "k_async")
