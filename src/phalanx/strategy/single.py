"""One worker, no exchange: the reference that every other strategy is checked against."""

from __future__ import annotations

import time

from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch
from phalanx.engine.replica import Replica
from phalanx.spec.strategy import StrategySpec
from phalanx.strategy.base import StepFacts, Strategy


class Single(Strategy):
    """Plain training in one process."""

    def __init__(self, spec: StrategySpec) -> None:
        """Make it from its spec, which has no settings."""

    @override
    def attach(self, replica: Replica, collective: Collective, *, equal: bool = False) -> None:
        self._replica = replica

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        result = self._replica.forward_backward(batch, step=step_index)
        begin = time.perf_counter()
        self._replica.apply(lr)
        return StepFacts.of(
            result,
            exchange_s=0.0,
            apply_s=time.perf_counter() - begin,
        )

    @override
    def synchronize(self) -> None:
        return
