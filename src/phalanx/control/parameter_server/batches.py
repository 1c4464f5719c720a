"""Assign tickets to workers on request. Pure: no clock, no I/O.

Tickets are assigned up to a gate (the end of an epoch, a checkpoint); those behind it wait until
everything before it is done. Every ticket counts exactly once: tickets of a lost worker go to
others, a completion counts only if it comes from the current holder, and what is computed again for
a restored server counts no second time. Where every update takes a gradient of every worker, empty
tickets are assigned too, so that all push equally often. Tickets that wait are kept as ranges: an
epoch may have millions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from phalanx.consistency.rule import ConsistencyRule
from phalanx.control.parameter_server.done_tickets import DoneTickets
from phalanx.wire.parameter_server import CompletedTicket
from phalanx.wire.tickets import TicketPlan

# Without a finished batch for so long, a round lacks gradients that no worker will send.
_STALLED_S = 1.0
# Ticket of a push without samples.
_EMPTY = 0


@dataclass(frozen=True)
class BatchAssignment:
    """Tickets for a worker; without tickets it leaves the servers until the next gate."""

    worker: int
    tickets: tuple[int, ...]


class BatchScheduler:
    """Account for tickets: waiting, assigned, done.

    Args:
        plan: The numbering of tickets.
        rule: Says whether workers wait for each other.
        static: Whether part i belongs to worker i as long as that worker is present; otherwise the
            next ticket goes to the next worker that asks.
        now: Time of the last progress, from which a stalled round is recognised.
    """

    def __init__(
        self, plan: TicketPlan, rule: ConsistencyRule, *, static: bool, now: float
    ) -> None:
        self.plan = plan
        self._in_rounds = rule.in_rounds(plan.num_parts)
        self._holds_back = rule.holds_back(plan.num_parts)
        # In rounds no worker can run ahead, and one ticket of each part makes a global batch.
        self._static = static or self._in_rounds or plan.portions is not None
        self._is_open = False
        self.done = DoneTickets(plan.num_parts)
        self._waiting: dict[int, range] = {}
        self._returned: deque[int] = deque()
        self._held: dict[int, int] = {}
        self._highest = 0
        self._wanted: dict[int, int] = {}
        self._num_given: dict[int, int] = {}
        self._last_progress = now

    @property
    def num_open(self) -> Counter[int]:
        """Tickets that each worker owes: assigned and not completed, or its own by rank."""
        owed = Counter(self._held.values())
        if self._static:
            owed.update({part: len(queue) for part, queue in self._waiting.items() if queue})
        return owed

    @property
    def is_drained(self) -> bool:
        """Whether every ticket up to the gate is done."""
        return not self._held and not self._returned and not any(self._waiting.values())

    def open(self, first: int, stop: int, present: Collection[int]) -> list[BatchAssignment]:
        """Assign tickets from `first` to before `stop`, first to workers that wait.

        Args:
            first: The first ticket.
            stop: The gate.
            present: Workers that take part.
        """
        self._is_open = True
        self.done.begin(first)
        parts = self.plan.num_parts
        self._waiting = (
            {part: self._with_samples(range(first + part, stop, parts)) for part in range(parts)}
            if self._static
            else {0: range(first, stop)}
        )
        self._num_given.clear()
        return self._assign_all(present)

    def repeat(self, server: int, present: Collection[int]) -> tuple[int, list[BatchAssignment]]:
        """Compute what a restored server lacks again, also behind a gate that was closed.

        Returns:
            How many tickets that are, and what the workers get of them now.
        """
        lacking = self.done.lacking(server, self._held.keys() | set(self._returned))
        self._returned.extend(lacking)
        if lacking:
            self._is_open = True
        return len(lacking), self._assign_all(present) if lacking else []

    def close(self) -> None:
        """Assign nothing until the next gate is opened."""
        self._is_open = False

    def shorten(self) -> int:
        """Drop tickets beyond the global batch that a worker has begun last.

        Returns:
            The first ticket that will not be assigned.
        """
        if self._highest:
            begun = self.plan.unit(self._highest)
            stop = self.plan.first(begun.epoch, begun.step + 1)
        else:
            stop = min(queue[0] for queue in self._waiting.values() if queue)
        for part, queue in self._waiting.items():
            self._waiting[part] = queue[: bisect_left(queue, stop)]
        return stop

    def only_held(self, tickets: Iterable[int]) -> list[int]:
        """Return those tickets that workers hold."""
        return [ticket for ticket in tickets if ticket in self._held]

    def request(self, worker: int, count: int) -> None:
        """Note how many tickets a worker has room for."""
        self._wanted[worker] = count

    def complete(
        self, worker: int, done: Sequence[CompletedTicket], *, want: int, now: float
    ) -> list[CompletedTicket]:
        """Note completed tickets of a worker, and its room for more.

        Returns:
            What counts: tickets that this worker still held, and that were not done before.
        """
        self._last_progress = now
        if want > 0:
            self._wanted[worker] = want
        counted = []
        for one in done:
            if self._held.get(one.ticket) != worker:
                continue
            del self._held[one.ticket]
            if self.done.complete(one.ticket):
                counted.append(one)
            if self.done.is_due_again(one.ticket):
                self._returned.append(one.ticket)
        return counted

    def lose(self, worker: int, present: Collection[int]) -> tuple[int, list[BatchAssignment]]:
        """Take back the tickets of a lost worker; they are assigned to others before all else.

        Returns:
            How many tickets that were, and what the others get of them now.
        """
        self._wanted.pop(worker, None)
        self._num_given.pop(worker, None)
        lost = sorted(ticket for ticket, holder in self._held.items() if holder == worker)
        for ticket in lost:
            del self._held[ticket]
            self.done.returned(ticket)
        # To the front: the gate waits for these, the oldest tickets, in any case.
        self._returned.extendleft(reversed(lost))
        return len(lost), self._assign_all(present)

    def assign(self, worker: int, present: Collection[int]) -> list[BatchAssignment]:
        """Assign as many tickets as a worker has requested; fewer or none when the gate is near.

        Args:
            worker: The one that requested.
            present: Workers that take part; parts of the others may go to any worker.
        """
        if not self._is_open or self.is_drained or worker not in present:
            return []
        if worker not in self._wanted:
            return []
        count = min(self._wanted[worker], self._fair_share(len(present)))
        tickets = self._take(worker, count, present)
        if not tickets and self._in_rounds and not self._holds(worker):
            # Others have pushed more often: their rounds need a push of this worker too.
            most = max((self._num_given.get(other, 0) for other in present), default=0)
            tickets = [_EMPTY] * min(count, most - self._num_given.get(worker, 0))
        if tickets:
            return [self._give(worker, tickets)]
        if self._holds_back and not self._holds(worker):
            return [BatchAssignment(worker, ())]
        return []

    def even_out(self, now: float) -> list[BatchAssignment]:
        """Have idle workers push without samples when a round stalls after losses."""
        is_stalled = now - self._last_progress > _STALLED_S
        if not (self._is_open and self._in_rounds and is_stalled):
            return []
        self._last_progress = now
        idle = [worker for worker in self._wanted if not self._holds(worker)]
        return [self._give(worker, [_EMPTY]) for worker in idle]

    def _assign_all(self, present: Collection[int]) -> list[BatchAssignment]:
        return [one for worker in list(self._wanted) for one in self.assign(worker, present)]

    def _fair_share(self, num_workers: int) -> int:
        """Limit one assignment to half an even share, so that no worker hoards the rest."""
        num_left = len(self._returned) + sum(len(queue) for queue in self._waiting.values())
        return max(1, num_left // (2 * max(1, num_workers)))

    def _take(self, worker: int, count: int, present: Collection[int]) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            ticket = self._next_ticket(worker, present)
            if ticket is None:
                break
            self._held[ticket] = worker
            self._highest = max(self._highest, ticket)
            taken.append(ticket)
        return taken

    def _next_ticket(self, worker: int, present: Collection[int]) -> int | None:
        if self._returned:
            return self._returned.popleft()
        part: int | None = worker if self._static else 0
        if self._static and not self._waiting.get(worker):
            # The parts of workers that are gone go to any worker.
            gone = (part for part, queue in self._waiting.items() if queue and part not in present)
            part = min(gone, default=None)
        queue = self._waiting.get(part) if part is not None else None
        if not queue or part is None:
            return None
        self._waiting[part] = queue[1:]
        return queue[0]

    def _with_samples(self, tickets: range) -> range:
        """Return the tickets of one part until it runs out of samples in this epoch."""
        return tickets[: bisect_left(tickets, 1, key=lambda one: not self.plan.has_samples(one))]

    def _holds(self, worker: int) -> bool:
        return worker in self._held.values()

    def _give(self, worker: int, tickets: Sequence[int]) -> BatchAssignment:
        self._num_given[worker] = self._num_given.get(worker, 0) + len(tickets)
        left = self._wanted.get(worker, 0) - len(tickets)
        if left > 0:
            self._wanted[worker] = left
        else:
            self._wanted.pop(worker, None)
        return BatchAssignment(worker, tuple(tickets))
