"""A batch of several pushes, one per model of a script, over real sockets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from phalanx.data.pipeline import Batch
from phalanx.engine.layout import Range
from phalanx.engine.result import StepResult
from phalanx.paramserver.client import Client
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.server import Server
from phalanx.spec.optimize import SgdSpec
from phalanx.strategy.push_pull import PushPull
from phalanx.wire.keys import KeyPair
from support.paramserver import (
    LIMIT_S,
    client_for,
    consistency_rule,
    make_shard,
    serving,
    settings_for,
    small_layout,
    soon,
)

SIZE, HALF = 12, 6
LAYOUT = small_layout(SIZE, segments=2)
ONE_SAMPLE = Batch(
    inputs=np.zeros((1, 1), dtype=np.float32),
    targets=np.zeros(1, dtype=np.int64),
    indices=np.zeros(1, dtype=np.int64),
    global_count=1,
    global_offset=0,
    epoch=0,
    step=0,
)


class TwoHalves:
    """A replica of two models, of which each has a gradient of ones in every batch."""

    buckets = (Range(0, HALF), Range(HALF, SIZE))
    gradient_weight = 1.0
    update_options = b""

    def __init__(self, parameters: torch.Tensor, gradients: torch.Tensor) -> None:
        gradients.fill_(1.0)
        self._parameters = parameters
        self.seen: list[list[float]] = []
        """The halves on which each gradient was computed."""

    def forward_backward(self, batch: Batch, on_bucket_ready: Any, *, step: int) -> StepResult:
        self.seen.append(self._parameters[[0, -1]].tolist())
        on_bucket_ready((len(self.seen) - 1) % 2)
        return StepResult(0.5, 0, 1, 0.0, 0.0)


def joined(stack: ExitStack, server: Server, rank: int) -> tuple[TwoHalves, PushPull, Client]:
    keys = KeyPair.make()
    peer = ClientIdentity("worker", rank, 1)
    server.call(lambda: server.admit(keys.public, peer)).result(LIMIT_S)
    client, parameters, gradients = client_for(LAYOUT, [server.address], keys, worker=rank)
    stack.enter_context(client)
    client.connect(soon("the servers"))
    replica = TwoHalves(parameters, gradients)
    pushing = PushPull(
        replica,  # type: ignore[arg-type]
        client,
        overlap=False,
        make_deadline=soon,
        on_idle=lambda: None,
        num_pushes=2,
        in_rounds=True,
    )
    return replica, pushing, client


def test_each_push_is_computed_on_what_came_of_the_one_before() -> None:
    shard = make_shard(
        LAYOUT,
        rule=consistency_rule(consistency="bsp"),
        workers=[0],
        optimizer=SgdSpec(lr=0.1, momentum=0.0),
    )
    with ExitStack() as stack:
        server = Server(shard, keys=KeyPair.make(), settings=settings_for(LAYOUT))
        stack.enter_context(serving(server))
        replica, pushing, client = joined(stack, server, 0)
        (first,) = pushing.push(ONE_SAMPLE, 1)
        (second,) = pushing.push(ONE_SAMPLE, 2)
        assert (first.ticket, second.ticket) == (1, 2)
        # Losses of both models, of one sample.
        assert (first.facts.loss_sum, first.facts.num_samples) == (1.0, 1)
        expected = [[0.0, 0.0], [-0.1, 0.0], [-0.1, -0.1], [-0.2, -0.1]]
        assert torch.allclose(torch.tensor(replica.seen), torch.tensor(expected))
        assert client.acknowledged(0) == 2
        facts = server.call(server.facts).result(LIMIT_S)
        assert (facts.samples, facts.version, facts.repeated) == (2, 4, 0)


def test_a_newcomer_in_the_middle_of_a_batch_begins_with_the_next_one() -> None:
    shard = make_shard(
        LAYOUT,
        rule=consistency_rule(consistency="bsp"),
        workers=[0, 1],
        optimizer=SgdSpec(lr=0.1, momentum=0.0),
    )
    # The first push of a batch has been made.
    shard.restore(version=1, samples_seen=0)
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        server = Server(shard, keys=KeyPair.make(), settings=settings_for(LAYOUT))
        stack.enter_context(serving(server))
        replica, pushing, _ = joined(stack, server, 0)
        other = joined(stack, server, 1)
        working = pool.submit(other[1].push, ONE_SAMPLE, 2)
        pushing.push(ONE_SAMPLE, 1)
        working.result(LIMIT_S)
        assert shard.policy.version == 4
        assert torch.allclose(torch.tensor(replica.seen), torch.tensor([[0.0, 0.0], [-0.1, 0.0]]))
        assert replica.seen == other[0].seen
