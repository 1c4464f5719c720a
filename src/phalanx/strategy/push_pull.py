"""Step against parameter servers: compute on pulled parameters, push gradients, pull again.

The coordinator assigns batches one by one, and workers need nothing of one another. The
parameter-server worker calls `push` with tickets; any other loop can call `step`. Segments of the
gradient leave while backward computes the rest. With `overlap`, the answer to a push is awaited
only after the next gradient has been computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from phalanx.data.pipeline import Batch
from phalanx.engine.result import StepResult
from phalanx.engine.spans import span
from phalanx.engine.trained import FlatReplica
from phalanx.paramserver.client import Client
from phalanx.strategy.base import StepFacts, Strategy
from phalanx.wire.deadline import Deadline


@dataclass(frozen=True)
class Pushed:
    """A ticket whose gradient the servers have acknowledged."""

    ticket: int
    facts: StepFacts


class PushPull(Strategy):
    """Train a replica whose parameters are overwritten by what the servers send.

    With `overlap` it computes while a push is on its way; `make_deadline` makes the deadline of a
    wait for servers from its activity; `on_idle` is called several times a second while it waits.
    """

    def __init__(
        self,
        replica: FlatReplica,
        client: Client,
        *,
        overlap: bool,
        make_deadline: Callable[[str], Deadline],
        on_idle: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._client = client
        self._overlap = overlap
        self._make_deadline = make_deadline
        self._on_idle = on_idle
        self._outstanding: tuple[int, StepResult] | None = None

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        """Compute and push one batch.

        The servers apply the update and know the learning rate. With `overlap` the facts are those
        of the push before, whose answer was awaited in this step; the first step has none.
        """
        acknowledged = self.push(batch, step_index)
        if acknowledged:
            return acknowledged[-1].facts
        return StepFacts(0, 0.0, 0, 0.0, 0.0, 0.0, 0.0)

    @override
    def synchronize(self) -> None:
        """Wait until the servers hold this worker's last gradient."""
        self.drain()

    def push(self, batch: Batch, ticket: int) -> list[Pushed]:
        """Compute and push one batch; return the tickets acknowledged meanwhile."""
        if len(batch) == 0:
            # One push at a time: the previous one is answered first.
            acknowledged = self.drain()
            self._replica.pass_over(batch, step=ticket)
            self._client.skip(ticket=ticket)
            self._outstanding = (ticket, StepResult(0.0, 0, 0, 0.0, 0.0))
            return acknowledged + self.drain()
        if self._overlap:
            return self._step_overlapped(batch, ticket)
        num_sent = 0

        def send_bucket(index: int) -> None:
            nonlocal num_sent
            if num_sent == 0:
                # Only now the loss is known, and with it what it counted.
                self._begin(batch, ticket)
            num_sent += 1
            self._send_bucket(index)

        result = self._replica.forward_backward(batch, send_bucket, step=ticket)
        self._finish(ticket, has_gradient=num_sent > 0)
        self._outstanding = (ticket, result)
        return self.drain()

    def take_part(self) -> None:
        """Take part in a round without samples, so that others can finish it; `drain` first."""
        self._client.skip()
        self._wait()

    def drain(self) -> list[Pushed]:
        """Wait for the outstanding push, if there is one."""
        if self._outstanding is None:
            return []
        (ticket, result), self._outstanding = self._outstanding, None
        begin, sent = time.perf_counter(), self._client.first_sent_s
        self._wait()
        facts = StepFacts.of(
            result,
            exchange_s=time.perf_counter() - begin,
            apply_s=0.0,
            # Segments left during backward, or with `overlap` during all of the next step. At most:
            # answers may have come, but are only read from here on.
            overlapped_s=max(0.0, begin - sent) if sent is not None else 0.0,
            wait_s=self._client.held_s,
        )
        return [Pushed(ticket, facts)]

    def _step_overlapped(self, batch: Batch, ticket: int) -> list[Pushed]:
        ready: list[int] = []
        result = self._replica.forward_backward(batch, ready.append, step=ticket)
        # The gradient is complete: the pull may overwrite the parameters it was computed on.
        acknowledged = self.drain()
        if ready:
            self._begin(batch, ticket)
        self._finish(ticket, has_gradient=bool(ready))
        self._outstanding = (ticket, result)
        return acknowledged

    def _begin(self, batch: Batch, ticket: int) -> None:
        num_samples = len(batch)
        weight = self._replica.gradient_weight / batch.global_count
        with span("push"):
            self._client.begin(
                num_samples=num_samples,
                weight=weight,
                ticket=ticket,
                options=self._replica.update_options,
            )

    def _finish(self, ticket: int, *, has_gradient: bool) -> None:
        with span("push"):
            if has_gradient:
                self._client.finish()
            else:
                # A script has made no step of its batch.
                self._client.skip(ticket=ticket)

    def _send_bucket(self, index: int) -> None:
        bucket = self._replica.buckets[index]
        with span("push"):
            self._client.ready(bucket.start, bucket.stop)

    def _wait(self) -> None:
        with span("pull"):
            self._client.wait(self._make_deadline("the servers to answer a push"), self._on_idle)
