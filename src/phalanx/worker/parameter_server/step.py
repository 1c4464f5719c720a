"""Compute tickets: load the batch, push its gradient, record the step, note the completion."""

from __future__ import annotations

import time
from collections.abc import Callable

from phalanx.consistency.rule import rule_for
from phalanx.engine.spans import span
from phalanx.paramserver.client import Client
from phalanx.strategy.push_pull import Pushed, PushPull
from phalanx.wire.deadline import Deadline
from phalanx.wire.parameter_server import CompletedTicket
from phalanx.worker.context import WorkerContext
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.metrics import record_stall, record_step
from phalanx.worker.parameter_server.tickets import TicketQueue
from phalanx.worker.replica import TrainResources


class TicketTrainer:
    """Train on the batches of tickets.

    Args:
        context: Of this worker.
        basis: Data and replica.
        client: Of the servers, over the replica's buffers.
        tickets: Loads batches, and reports what is done.
        rate: As the servers compute it, for the records.
        slowdown: What the job injects into this worker.
        make_deadline: Makes the deadline of a wait for servers from its activity.
        on_idle: Called several times a second while servers are awaited.
        num_pushes: Of each batch.
    """

    def __init__(
        self,
        context: WorkerContext,
        basis: TrainResources,
        *,
        client: Client,
        tickets: TicketQueue,
        rate: Callable[[int], float],
        slowdown: InjectedSlowdown,
        make_deadline: Callable[[str], Deadline],
        on_idle: Callable[[], None],
        num_pushes: int = 1,
    ) -> None:
        self._context = context
        self._epoch_samples = basis.dataset.epoch_samples
        self._client = client
        self._tickets = tickets
        self._rate = rate
        self._slowdown = slowdown
        self._slept_s = 0.0
        self._seen_at: dict[int, int] = {}  # samples seen when a ticket was begun
        self._push_pull = PushPull(
            basis.replica,
            client,
            overlap=context.serving.overlap,
            make_deadline=make_deadline,
            on_idle=on_idle,
            num_pushes=num_pushes,
            in_rounds=rule_for(context.serving).in_rounds(context.job.workers),
        )

    def train(self, ticket: int) -> None:
        """Train on the batch of a ticket; 0: take part in a round without samples."""
        if ticket == 0:
            self._take_part()
            return
        loader = self._tickets.loader
        self._context.profiler.enter(loader.plan.unit(ticket).epoch)
        asked = time.perf_counter()
        with span("input"):
            batch = loader.next()
        input_s = time.perf_counter() - asked
        metrics, total = self._context.metrics, self._epoch_samples
        if metrics.epoch != batch.epoch or metrics.epoch_total == 0:
            metrics.begin_epoch(batch.epoch, total=total, resumed=False)
        seen = self._client.samples_seen
        self._slept_s = self._slowdown.wait(seen / (total * self._context.job.epochs))
        self._seen_at[ticket] = self._client.samples_seen
        # With overlap these are earlier tickets: complete only once all servers acknowledged.
        for pushed in self._push_pull.push(batch, ticket):
            self._complete(pushed, input_s=input_s)
            input_s = 0.0
        self._context.profiler.step_done()

    def settle(self) -> None:
        """Wait for the outstanding push, if there is one."""
        for pushed in self._push_pull.drain():
            self._complete(pushed, input_s=0.0)

    def record_wait(self, what: str, duration_s: float, *, wait_s: float) -> None:
        """Record a time without computing."""
        context = self._context
        record_stall(
            context.log,
            context.metrics,
            epoch=context.metrics.epoch,
            what=what,
            duration_s=duration_s,
            wait_s=wait_s,
        )

    def _take_part(self) -> None:
        # One push at a time: the outstanding one is answered first.
        self.settle()
        begin = time.perf_counter()
        self._push_pull.take_part()
        self.record_wait("round", time.perf_counter() - begin, wait_s=self._client.held_s)

    def _complete(self, pushed: Pushed, *, input_s: float) -> None:
        facts = self._slowdown.count(pushed.facts, self._slept_s)
        record_step(
            self._context.log,
            self._context.metrics,
            facts,
            epoch=self._tickets.loader.plan.unit(pushed.ticket).epoch,
            step=pushed.ticket,
            lr=self._rate(self._seen_at.pop(pushed.ticket)),
            input_s=input_s,
            sent_bytes=self._client.sent_bytes,
        )
        self._tickets.complete(
            CompletedTicket(
                pushed.ticket, facts.num_samples, facts.loss_sum, facts.num_correct, facts.weight
            )
        )
