"""Synchronous data parallelism: gradients are summed over all workers in every step.

Every worker divides its loss by the true size of the global batch, so the sum over workers is the
exact mean gradient however unevenly the batch is cut. Buckets of the flat gradient buffer travel
while backward still computes the rest.
"""

from __future__ import annotations

import time

import torch
from typing_extensions import override

from phalanx.comm.base import Collective, Pending
from phalanx.comm.compression import Bf16Compressor
from phalanx.data.pipeline import Batch
from phalanx.engine.replica import Replica
from phalanx.engine.spans import span
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.strategy.base import StepFacts, Strategy, average_buffers, make_equal
from phalanx.strategy.gauge import Gauge
from phalanx.strategy.overlap import Overlap

_RESIDUAL = "residual"


class Allreduce(Strategy):
    """All workers hold the whole model and apply the same update."""

    def __init__(self, spec: AllreduceSpec) -> None:
        self._spec = spec
        self.gauge = Gauge()
        """Measures gradients when it is asked to."""

    @override
    def attach(self, replica: Replica, collective: Collective, *, equal: bool = False) -> None:
        self._replica = replica
        self._collective = collective
        self._compressor = (
            Bf16Compressor(replica.gradients) if self._spec.compression == "bf16" else None
        )
        self._buckets = replica.buckets
        self._pending: list[Pending] = []
        self._overlap = Overlap()
        if not equal:
            make_equal(replica, collective)

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        self._pending.clear()
        self._overlap.begin()
        result = self._replica.forward_backward(batch, self._start_bucket, step=step_index)
        overlapped_s = self._overlap.end(self._pending)
        computed = time.perf_counter()
        with span("all_reduce"):
            self._await_buckets()
        self.gauge.read_sum(
            self._replica.gradients,
            num_samples=result.num_samples,
            global_count=batch.global_count,
        )
        exchanged = time.perf_counter()
        self._replica.apply(lr)
        return StepFacts(
            num_samples=result.num_samples,
            loss_sum=result.loss_sum,
            num_correct=result.num_correct,
            forward_s=result.forward_s,
            backward_s=result.backward_s,
            exchange_s=exchanged - computed,
            apply_s=time.perf_counter() - exchanged,
            overlapped_s=overlapped_s if self._collective.size > 1 else 0.0,
        )

    def _start_bucket(self, index: int) -> None:
        """Called during backward, with rising bucket numbers: the same order on every worker."""
        bucket = self._buckets[index]
        self.gauge.read_own(self._replica.gradients[bucket.start : bucket.stop])
        with span("all_reduce"):
            if self._compressor is not None:
                tensor = self._compressor.compress(bucket.start, bucket.stop)
            else:
                tensor = self._replica.gradients[bucket.start : bucket.stop]
            self._overlap.look(self._pending)
            self._pending.append(self._collective.start_all_reduce(tensor))

    def _await_buckets(self) -> None:
        for index, pending in enumerate(self._pending):
            pending.wait()
            if self._compressor is not None:
                bucket = self._buckets[index]
                self._compressor.decompress(bucket.start, bucket.stop)

    @override
    def settle(self) -> None:
        average_buffers(self._replica, self._collective)

    @override
    def export_state(self) -> dict[str, torch.Tensor]:
        if self._compressor is None:
            return {}
        return {_RESIDUAL: torch.stack(self._collective.all_gather(self._compressor.residual))}

    @override
    def import_state(self, state: dict[str, torch.Tensor]) -> None:
        if self._compressor is None or _RESIDUAL not in state:
            return
        residuals = state[_RESIDUAL]
        rank = self._collective.rank
        if len(residuals) == self._collective.size:
            self._compressor.residual.copy_(residuals[rank])
        elif rank == 0:
            # In a group of another size the first worker carries what all of them still owed.
            self._compressor.residual.copy_(residuals.sum(0))
