"""Queue the tickets of a worker with parameter servers: request, prepare, compute, report."""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from phalanx.consistency.rule import rule_for
from phalanx.data.pipeline import Batch, BatchStream, Dataset, unit_batches
from phalanx.wire.control_client import ControlClient
from phalanx.wire.parameter_server import CompletedTicket, RequestWork, WorkDone
from phalanx.wire.tickets import TicketPlan
from phalanx.worker.context import WorkerContext

# Interval of requests and reports: a chatty worker keeps the coordinator busy.
_REPORT_S = 0.05
_MOST_TICKETS = 64
_FIRST_TICKETS = 2
# Weight of the newest ticket in the running mean of a ticket's time.
_WEIGHT = 0.1


class BatchLoader(Protocol):
    """Load the batches of a worker's tickets."""

    plan: TicketPlan

    def prepare(self, ticket: int) -> None:
        """Prepare the batch of a ticket; the epoch before must have been taken whole."""

    def next(self) -> Batch:
        """Return the next batch, in the order in which they were asked for."""

    def close(self) -> None:
        """End what is behind it."""


class TicketLoader:
    """Prefetch the batches of a worker's tickets.

    Args:
        context: Gives the job.
        dataset: What the batches are cut from.
        plan: What tickets stand for.
    """

    def __init__(self, context: WorkerContext, dataset: Dataset, plan: TicketPlan) -> None:
        self._context = context
        self._dataset = dataset
        self.plan = plan
        self._in_rounds = rule_for(context.serving).in_rounds(context.job.workers)
        self._epoch = -1
        self._asked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._stream: BatchStream | None = None
        self._batches: Iterator[Batch] = iter(())

    def prepare(self, ticket: int) -> None:
        """Prepare the batch of a ticket; the epoch before must have been taken whole."""
        unit = self.plan.unit(ticket)
        if unit.epoch != self._epoch:
            self._begin_epoch(unit.epoch)
        self._asked.put((unit.step, unit.part))

    def next(self) -> Batch:
        """Return the next batch, in the order in which they were asked for."""
        batch = next(self._batches)
        if self._in_rounds:
            return batch
        # Gradients of several steps may meet in one update: one divisor for all makes a sample of
        # the last, smaller batch weigh there as much as any other.
        return replace(batch, global_count=self._context.job.global_batch)

    def close(self) -> None:
        """End the threads behind it."""
        self._asked.put(None)
        if self._stream is not None:
            self._stream.close()

    def _begin_epoch(self, epoch: int) -> None:
        self.close()
        job = self._context.job
        self._epoch = epoch
        self._asked = queue.SimpleQueue()
        self._stream = unit_batches(
            self._dataset,
            iter(self._asked.get, None),
            spec=job.data,
            seed=job.seed,
            epoch=epoch,
            global_batch=job.global_batch,
            num_parts=job.workers,
            shares=job.batch.shares,
        )
        self._batches = iter(self._stream)


class TicketQueue:
    """Hold a worker's tickets from the coordinator's assignment to the worker's report.

    Requests as many as last until the next report but one, so that a worker never runs dry while an
    answer is under way.

    Args:
        control: To the coordinator.
        loader: Prepares the batches.
    """

    def __init__(self, control: ControlClient, loader: BatchLoader) -> None:
        self._control = control
        self.loader = loader
        self._tickets: deque[int] = deque()
        self._completed: list[CompletedTicket] = []
        self._wanted = 0
        self._reported_s = time.monotonic()
        self._ticket_s = 0.05

    def __len__(self) -> int:
        return len(self._tickets)

    def ask(self) -> None:
        """Ask for the first tickets."""
        self._wanted = _FIRST_TICKETS
        self._control.send(RequestWork(self._wanted))

    def extend(self, tickets: Sequence[int]) -> None:
        """Take tickets from the coordinator, and have their batches prepared."""
        self._wanted = max(0, self._wanted - len(tickets))
        self._tickets.extend(tickets)
        for ticket in tickets:
            if ticket != 0:
                self.loader.prepare(ticket)

    def pop(self) -> int:
        """Return the next ticket."""
        return self._tickets.popleft()

    def complete(self, completed: CompletedTicket) -> None:
        """Note a ticket whose gradient every server has acknowledged."""
        self._completed.append(completed)

    def spent(self, duration_s: float) -> None:
        """Note how long a ticket took; report if it is time to."""
        self._ticket_s += _WEIGHT * (duration_s - self._ticket_s)
        if time.monotonic() - self._reported_s > _REPORT_S:
            self.report()

    def report(self) -> None:
        """Report completed tickets, and request enough until the next report."""
        self._reported_s = time.monotonic()
        target = min(_MOST_TICKETS, max(2, math.ceil(2 * _REPORT_S / max(self._ticket_s, 1e-4))))
        want = max(0, target - len(self._tickets))
        if self._completed or want > self._wanted:
            self._control.send(WorkDone(tuple(self._completed), want))
            self._completed.clear()
            self._wanted = want
