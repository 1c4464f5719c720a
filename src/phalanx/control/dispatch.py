"""Handing out batches one by one: who works on what, and what is done. Pure.

Under a parameter server no step joins all workers, so somebody must keep count. Tickets are handed
out up to a gate (the end of an epoch, a checkpoint); behind it they wait until everything before it
is done.

Every ticket is completed exactly once: those of a lost worker go to others, and whoever completes a
ticket that is no longer his is not counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from phalanx.wire.tickets import TicketPlan


class Dispatcher:
    """Hands out tickets and keeps account of them.

    Args:
        plan: The numbering.
        static: Whether part i belongs to worker i as long as that worker is there; otherwise the
            next ticket goes to whoever asks.
    """

    def __init__(self, plan: TicketPlan, *, static: bool) -> None:
        self._plan = plan
        self._static = static
        self._waiting: dict[int, deque[int]] = {}
        self._returned: deque[int] = deque()
        self._held: dict[int, int] = {}
        self._highest = 0
        self.num_done = 0
        self.num_returned = 0

    @property
    def is_drained(self) -> bool:
        """Whether every ticket up to the gate is done."""
        return not self._held and not self._returned and not any(self._waiting.values())

    def fair_share(self, num_workers: int) -> int:
        """Tickets to give at once so that nobody hoards what is left: half of an even share."""
        num_left = len(self._returned) + sum(len(queue) for queue in self._waiting.values())
        return max(1, num_left // (2 * max(1, num_workers)))

    def open_gate(self, first: int, stop: int) -> None:
        """Let tickets from `first` to before `stop` be handed out."""
        for ticket in filter(self._plan.has_samples, range(first, stop)):
            queue = self._plan.unit(ticket).part if self._static else 0
            self._waiting.setdefault(queue, deque()).append(ticket)

    def shorten_gate(self) -> int:
        """Keep only what belongs to global batches that somebody has begun.

        Returns:
            The first ticket that will not be handed out.
        """
        if self._highest:
            begun = self._plan.unit(self._highest)
            stop = self._plan.first(begun.epoch, begun.step + 1)
        else:
            stop = min(ticket for queue in self._waiting.values() for ticket in queue)
        for part, queue in self._waiting.items():
            self._waiting[part] = deque(ticket for ticket in queue if ticket < stop)
        return stop

    def take(self, worker: int, count: int, present: Collection[int]) -> list[int]:
        """Up to `count` tickets for a worker; fewer or none when the gate is near.

        Args:
            worker: Who asks.
            count: How many it wants.
            present: Workers that are there; what belongs to the others is anybody's.
        """
        taken: list[int] = []
        while len(taken) < count:
            queue = self._queue_for(worker, present)
            if queue is None:
                break
            ticket = queue.popleft()
            self._held[ticket] = worker
            self._highest = max(self._highest, ticket)
            taken.append(ticket)
        return taken

    def complete(self, worker: int, ticket: int) -> bool:
        """A worker is done with a ticket; False: it was not his (any more) and does not count."""
        if self._held.get(ticket) != worker:
            return False
        del self._held[ticket]
        self.num_done += 1
        return True

    def holds(self, worker: int) -> bool:
        """Whether a worker still has tickets to do."""
        return worker in self._held.values()

    def give_back(self, worker: int) -> list[int]:
        """A worker is gone; what it held goes to the others, first of all."""
        lost = sorted(ticket for ticket, holder in self._held.items() if holder == worker)
        for ticket in lost:
            del self._held[ticket]
        self._returned.extendleft(reversed(lost))
        self.num_returned += len(lost)
        return lost

    def _queue_for(self, worker: int, present: Collection[int]) -> deque[int] | None:
        if self._returned:
            return self._returned
        if not self._static:
            return self._waiting.get(0) or None
        own = self._waiting.get(worker)
        if own:
            return own
        orphaned = (part for part, queue in self._waiting.items() if queue and part not in present)
        part = min(orphaned, default=None)
        return None if part is None else self._waiting[part]
