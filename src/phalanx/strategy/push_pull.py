"""Step against parameter servers: compute on pulled parameters, push gradients, pull again.

The coordinator assigns batches one by one, and workers need nothing of one another. The
parameter-server worker calls `push` with tickets; any other loop can call `step`. Segments of the
gradient leave while backward computes the rest. With `overlap`, the answer to a push is awaited
only after the next gradient has been computed.

A batch of a script with several optimisers is as many pushes, one per optimiser: each brings the
gradient of one model, and the next is computed on what came of it.
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
class _Outstanding:
    """A push without an answer, and whether it is the last one of its batch."""

    ticket: int
    result: StepResult
    ends: bool


@dataclass(frozen=True)
class _Place:
    """Which push of a batch: whether others come before it, and whether others follow."""

    continues: bool
    ends: bool


@dataclass(frozen=True)
class Pushed:
    """A ticket whose gradient the servers have acknowledged."""

    ticket: int
    facts: StepFacts


class PushPull(Strategy):
    """Train a replica whose parameters are overwritten by what the servers send.

    Args:
        replica: What it trains.
        client: Of the servers.
        overlap: Whether it computes while a push is on its way.
        make_deadline: Makes the deadline of a wait for servers from its activity.
        on_idle: Called several times a second while it waits.
        num_pushes: Of each batch: optimisers that step.
        in_rounds: Whether every update takes a push of every worker, so that all must be at the
            same one of a batch.
    """

    def __init__(
        self,
        replica: FlatReplica,
        client: Client,
        *,
        overlap: bool,
        make_deadline: Callable[[str], Deadline],
        on_idle: Callable[[], None],
        num_pushes: int = 1,
        in_rounds: bool = False,
    ) -> None:
        self._replica = replica
        self._client = client
        self._overlap = overlap
        self._make_deadline = make_deadline
        self._on_idle = on_idle
        self._num_pushes = num_pushes
        self._in_rounds = in_rounds
        self._outstanding: _Outstanding | None = None
        self._facts: StepFacts | None = None  # of pushes of a batch that has not ended

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
        acknowledged = self._align()
        for number in range(self._num_pushes):
            place = _Place(continues=number > 0, ends=number == self._num_pushes - 1)
            acknowledged += self._push(batch, ticket, place)
        return acknowledged

    def take_part(self) -> None:
        """Take part in the rounds of a batch without samples, so that others can finish them.

        `drain` first.
        """
        self._align()
        for _ in range(self._num_pushes):
            self._client.skip()
            self._wait()

    def drain(self) -> list[Pushed]:
        """Wait for the outstanding push, if there is one."""
        if self._outstanding is None:
            return []
        pushed, self._outstanding = self._outstanding, None
        begin, sent = time.perf_counter(), self._client.first_sent_s
        self._wait()
        facts = StepFacts.of(
            pushed.result,
            exchange_s=time.perf_counter() - begin,
            apply_s=0.0,
            # Segments left during backward, or with `overlap` during all of the next step. At most:
            # answers may have come, but are only read from here on.
            overlapped_s=max(0.0, begin - sent) if sent is not None else 0.0,
            wait_s=self._client.held_s,
        )
        if self._facts is not None:
            facts = self._facts.plus(facts)
        self._facts = None if pushed.ends else facts
        return [Pushed(pushed.ticket, facts)] if pushed.ends else []

    def _align(self) -> list[Pushed]:
        """Begin a batch where all others do: a newcomer may have joined in the middle of one."""
        if self._num_pushes == 1 or not self._in_rounds:
            return []
        acknowledged = self.drain()
        for _ in range(-max(self._client.versions.values()) % self._num_pushes):
            self._client.skip()
            self._wait()
        return acknowledged

    def _push(self, batch: Batch, ticket: int, place: _Place) -> list[Pushed]:
        if len(batch) == 0:
            # One push at a time: the previous one is answered first.
            acknowledged = self.drain()
            self._replica.pass_over(batch, step=ticket)
            self._client.skip(ticket=ticket, continues=place.continues, ends=place.ends)
            nothing = StepResult(0.0, 0, 0, 0.0, 0.0)
            self._outstanding = _Outstanding(ticket, nothing, place.ends)
            return acknowledged + self.drain()
        if self._overlap:
            return self._push_overlapped(batch, ticket, place)
        num_sent = 0

        def send_bucket(index: int) -> None:
            nonlocal num_sent
            if num_sent == 0:
                # Only now the loss is known, and with it what it counted.
                self._begin(batch, ticket, place)
            num_sent += 1
            self._send_bucket(index)

        result = self._replica.forward_backward(batch, send_bucket, step=ticket)
        self._finish(batch, ticket, place, has_gradient=num_sent > 0)
        self._outstanding = _Outstanding(ticket, result, place.ends)
        return self.drain()

    def _push_overlapped(self, batch: Batch, ticket: int, place: _Place) -> list[Pushed]:
        ready: list[int] = []
        result = self._replica.forward_backward(batch, ready.append, step=ticket)
        # The gradient is complete: the pull may overwrite the parameters it was computed on.
        acknowledged = self.drain()
        if ready:
            self._begin(batch, ticket, place)
            for index in ready:
                self._send_bucket(index)
        self._finish(batch, ticket, place, has_gradient=bool(ready))
        self._outstanding = _Outstanding(ticket, result, place.ends)
        return acknowledged

    def _begin(self, batch: Batch, ticket: int, place: _Place) -> None:
        num_samples = len(batch)
        weight = self._replica.gradient_weight / batch.global_count
        with span("push"):
            self._client.begin(
                num_samples=num_samples,
                weight=weight,
                ticket=ticket,
                options=self._replica.update_options,
                continues=place.continues,
                ends=place.ends,
            )

    def _finish(self, batch: Batch, ticket: int, place: _Place, *, has_gradient: bool) -> None:
        with span("push"):
            if has_gradient and self._num_pushes > 1:
                self._client.set_aside()
            elif has_gradient:
                self._client.finish()
            else:
                # A script has made no step of its batch, or none of another of its models.
                num_samples = len(batch) if place.continues else 0
                self._client.skip(
                    ticket=ticket,
                    num_samples=num_samples,
                    continues=place.continues,
                    ends=place.ends,
                )

    def _send_bucket(self, index: int) -> None:
        bucket = self._replica.buckets[index]
        with span("push"):
            self._client.ready(bucket.start, bucket.stop)

    def _wait(self) -> None:
        with span("pull"):
            self._client.wait(self._make_deadline("the servers to answer a push"), self._on_idle)
