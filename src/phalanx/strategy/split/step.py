"""Step a network over several workers: each holds some parts, and none holds all of it.

Activations travel forward and gradients back (`pipeline_runner`); weights, statistics and optimiser
state stay where they are. Parts that several workers hold are trained as data parallelism does,
among these workers. Clipping needs the length of the whole gradient: workers exchange one number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch
from phalanx.engine.spans import span
from phalanx.strategy.base import StepFacts, Strategy
from phalanx.strategy.split.network import SplitNetwork

MakeGroup = Callable[[Sequence[int]], Collective]
"""Forms a group of some of the workers; all of them call it, in the same order."""


class SplitStrategy(Strategy):
    """Train a split network, one step at a time; `make_group` joins the holders of a part."""

    def __init__(
        self,
        network: SplitNetwork,
        collective: Collective,
        *,
        make_group: MakeGroup,
        clip: bool,
    ) -> None:
        self._network = network
        self._collective = collective
        self._clip = clip
        self._groups: dict[tuple[int, ...], Collective] = {}
        for holders in dict.fromkeys(network.places):
            if len(holders) > 1 and collective.rank in holders:
                self._groups[holders] = make_group(holders)

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        """Train on a whole batch; samples and loss are counted where the last part is."""
        network, stage = self._network, self._network.stage
        inputs, targets = network.tensors(batch)
        stage.zero_gradients()
        with span("relay"):
            passed = network.runner.train(
                inputs, targets, step=step_index, global_count=batch.global_count
            )
        computed = time.perf_counter()
        # Sum before clipping: the norm is that of the global gradient.
        self._agree()
        norm = self._norm() if self._clip else None
        agreed = time.perf_counter()
        with span("apply"):
            for unit in stage.units:
                if unit.optimizer is not None:
                    unit.optimizer.step(unit.gradients, lr, gradient_norm=norm)
        transfers = network.runner.p2p
        return StepFacts.of(
            passed,
            exchange_s=transfers.blocked_s + agreed - computed,
            apply_s=time.perf_counter() - agreed,
            wait_s=transfers.wait_s,
        )

    def _agree(self) -> None:
        network = self._network
        for unit in network.stage.units:
            holders = network.holders(unit.contents)
            if len(holders) == 1 or unit.gradients.numel() == 0:
                continue
            group = self._groups[holders]
            sent_before = group.sent_bytes
            group.all_reduce(unit.gradients)
            # Gloo's ring sends everything to the next worker.
            beside = holders[(group.rank + 1) % group.size]
            sent = group.sent_bytes - sent_before
            network.runner.p2p.count("parameters", beside, sent)
            self._collective.count_beside(sent)

    def _norm(self) -> float:
        # Each unit counts once, at the holder that answers for it.
        own = [
            unit.optimizer.squared_norm(unit.gradients)
            for unit in self._network.stage.units
            if unit.optimizer is not None and self._network.answers_for(unit.contents)
        ]
        total = torch.tensor([math.fsum(own)], dtype=torch.float64)
        self._collective.all_reduce(total)
        return math.sqrt(total.item())

    @override
    def synchronize(self) -> None:
        """Average the batch-norm statistics of parts that several workers hold."""
        self._network.runner.p2p.flush()
        for unit in self._network.stage.units:
            holders = self._network.holders(unit.contents)
            if len(holders) > 1 and unit.buffers.numel() > 0:
                self._groups[holders].all_reduce(unit.buffers)
                unit.buffers.div_(len(holders))

    @override
    def close(self) -> None:
        for group in self._groups.values():
            group.close()
