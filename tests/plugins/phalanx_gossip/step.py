"""One step of gossip averaging: step alone, then average parameters with one partner.

Notation: x_i parameters of worker i after its own step, p(i) its partner in this step: x_i' = (x_i
+ x_p(i)) / 2. All workers draw the same pairing from the seed and the step, so nobody negotiates.
"""

from __future__ import annotations

import dataclasses
import random
import time

import torch
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch
from phalanx.engine.replica import Replica
from phalanx.strategy.base import StepFacts, Strategy, average_buffers, make_equal
from phalanx_gossip.settings import GossipSpec

_TAG = 77


def partner_of(rank: int, size: int, draw: int) -> int:
    """Draw a pairing; the same on every worker."""
    order = list(range(size))
    random.Random(draw).shuffle(order)
    return order[order.index(rank) ^ 1]


class Gossip(Strategy):
    """Decentralised averaging in random pairs."""

    def __init__(self, spec: GossipSpec) -> None:
        self._every = spec.every
        self._seed = spec.seed

    @override
    def attach(self, replica: Replica, collective: Collective, *, equal: bool = False) -> None:
        self._replica = replica
        self._collective = collective
        self._theirs = torch.empty_like(replica.parameters)
        if not equal:
            make_equal(replica, collective)

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        count = len(batch.targets)
        own = dataclasses.replace(batch, global_count=max(1, count))
        result = self._replica.forward_backward(own, step=step_index)
        computed = time.perf_counter()
        if count:
            self._replica.apply(lr)
        applied = time.perf_counter()
        if step_index % self._every == 0:
            self._average(step_index)
        return StepFacts(
            num_samples=result.num_samples,
            loss_sum=result.loss_sum,
            num_correct=result.num_correct,
            forward_s=result.forward_s,
            backward_s=result.backward_s,
            exchange_s=time.perf_counter() - applied,
            apply_s=applied - computed,
        )

    def _average(self, step_index: int) -> None:
        group, parameters = self._collective, self._replica.parameters
        if group.size == 1:
            return
        partner = partner_of(group.rank, group.size, self._seed + step_index)
        # The receive is posted first: two sends that wait for each other would never end.
        coming = group.start_receive(self._theirs, source=partner, tag=_TAG)
        going = group.start_send(parameters, target=partner, tag=_TAG)
        coming.wait()
        going.wait()
        # In this order on both sides, so that both get the same bits.
        low, high = sorted((group.rank, partner))
        first = parameters if low == group.rank else self._theirs
        second = parameters if high == group.rank else self._theirs
        parameters.copy_((first + second) / 2)

    @override
    def synchronize(self) -> None:
        """Replace every worker's parameters and statistics by the mean of all."""
        if self._collective.size > 1:
            self._collective.all_reduce(self._replica.parameters)
            self._replica.parameters.div_(self._collective.size)
        average_buffers(self._replica, self._collective)
