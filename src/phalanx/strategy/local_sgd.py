"""Local SGD: workers step alone and average their parameters every H steps.

Notation: x shared parameters at the last averaging, x_i worker i's after H own steps, n_i samples
(or what the loss counts) it used for them. Plain averaging: x' = Σ n_i x_i / Σ n_i. With an outer
step (DiLoCo, arXiv 2311.08105): d = x - Σ n_i x_i / Σ n_i, v' = μ v + d, x' = x - η (d + μ v'), a
Nesterov step along -d. Moments (momentum and the like) are averaged with the same weights (Yu, Jin,
Yang 2019). With H = 1 and SGD this is the same update as all-reduce, because it is linear.
Compressed, the workers' changes n_i (x_i - x) / Σ n_i are summed instead of their parameters, as
all-reduce sums gradients: what is left out of a change is added to the next one.
"""

from __future__ import annotations

import dataclasses
import time

import torch
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch
from phalanx.engine.spans import span
from phalanx.engine.trained import FlatReplica
from phalanx.spec.lockstep import LocalSgdSpec
from phalanx.strategy.base import StepFacts, Strategy, average_buffers, make_equal
from phalanx.strategy.exchange.base import build_exchange, equalise
from phalanx.strategy.topology_trial import TopologyTrial

_ANCHOR, _VELOCITY = "anchor", "velocity"


class LocalSgd(Strategy):
    """Exchange every few steps instead of every step."""

    def __init__(self, spec: LocalSgdSpec) -> None:
        self._spec = spec

    @override
    def attach(self, replica: FlatReplica, collective: Collective, *, equal: bool = False) -> None:
        self._replica = replica
        self._collective = collective
        self._steps = 0
        self._step_index = 0
        self._weight = 0.0
        self._topology = TopologyTrial(self._spec.topology, collective)
        if not equal:
            make_equal(replica, collective)
        self._exchange = (
            build_exchange(self._spec.compression, replica, collective)
            if self._spec.compression.name != "none"
            else None
        )
        anchored = self._spec.outer is not None or self._exchange is not None
        self._anchor = replica.parameters.clone() if anchored else None
        self._velocity = torch.zeros_like(replica.parameters) if self._spec.outer else None

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        num_samples = len(batch)
        # The mean over this worker's samples: no other worker takes part in this update.
        own = dataclasses.replace(batch, global_count=max(1, num_samples))
        result = self._replica.forward_backward(own, step=step_index)
        computed = time.perf_counter()
        if num_samples > 0:
            self._replica.apply(lr)
        applied = time.perf_counter()
        self._steps += 1
        self._step_index = step_index
        self._weight += result.weight if result.weight is not None else num_samples
        if self._steps == self._spec.every:
            with span("average"):
                self._average(moments=self._spec.average_moments)
        return StepFacts.of(
            result,
            exchange_s=time.perf_counter() - applied,
            apply_s=applied - computed,
        )

    @override
    def synchronize(self) -> None:
        """Average parameters, moments and batch-norm statistics not yet averaged."""
        if self._steps > 0:
            self._average(moments=True)
        average_buffers(self._replica, self._collective)
        if self._exchange is not None and self._exchange.replicas_drift:
            equalise(self._replica, self._collective)

    def _average(self, *, moments: bool) -> None:
        """Replace every worker's parameters by the mean, weighted by the samples or tokens used."""
        # The weights need the samples of all workers before any tensor is scaled.
        total = torch.tensor([float(self._weight)])
        self._collective.all_reduce(total)
        if total.item() > 0:
            self._topology.settle(self._sums_bytes())
            share = self._weight / total.item()
            self._average_parameters(share)
            for tensor in self._moments() if moments else ():
                # Scaled before the sum, which is then the weighted mean.
                tensor.mul_(share)
                self._collective.all_reduce(tensor)
            self._outer_step(self._replica.parameters)
        self._steps = 0
        self._weight = 0.0

    def _average_parameters(self, share: float) -> None:
        parameters = self._replica.parameters
        if self._exchange is None or self._anchor is None:
            parameters.mul_(share)
            self._collective.all_reduce(parameters)
            return
        # Between two steps the buffer of gradients is free.
        changes = self._replica.gradients
        torch.sub(parameters, self._anchor, out=changes).mul_(share)
        self._exchange.begin(self._step_index)
        for index in range(len(self._replica.buckets)):
            self._exchange.start(index)
        self._exchange.finish()
        torch.add(self._anchor, changes, out=parameters)
        if self._spec.outer is None:
            self._anchor.copy_(parameters)

    @override
    def take_note(self) -> str | None:
        note = None if self._exchange is None else self._exchange.take_note()
        return note or self._topology.take_note()

    def _sums_bytes(self) -> list[int]:
        if self._exchange is None:
            return [self._replica.parameters.nbytes]
        return self._exchange.sums_bytes()

    def _moments(self) -> list[torch.Tensor]:
        optimizer = self._replica.optimizer
        state = optimizer.state().values() if optimizer is not None else ()
        return [tensor for tensor in state if tensor.ndim and tensor.is_floating_point()]

    def _outer_step(self, parameters: torch.Tensor) -> None:
        outer = self._spec.outer
        if outer is None or self._anchor is None or self._velocity is None:
            return
        change = self._anchor.sub(parameters)
        self._velocity.mul_(outer.momentum).add_(change)
        change.add_(self._velocity, alpha=outer.momentum)
        self._anchor.add_(change, alpha=-outer.lr)
        parameters.copy_(self._anchor)

    @override
    def export_state(self) -> dict[str, torch.Tensor]:
        kept = {} if self._exchange is None else self._exchange.export_state()
        kept |= self._topology.export_state()
        if self._anchor is not None:
            kept[_ANCHOR] = self._anchor
        if self._velocity is not None:
            kept[_VELOCITY] = self._velocity
        return kept

    @override
    def import_state(self, state: dict[str, torch.Tensor]) -> None:
        if self._exchange is not None:
            self._exchange.import_state(state)
        self._topology.import_state(state)
        if self._anchor is not None:
            # Without one, the parameters themselves, which were restored before.
            self._anchor.copy_(state.get(_ANCHOR, self._replica.parameters))
        if self._velocity is not None and _VELOCITY in state:
            self._velocity.copy_(state[_VELOCITY])
