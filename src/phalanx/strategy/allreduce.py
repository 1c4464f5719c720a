"""Synchronous data parallelism: gradients are summed over all workers in every step.

Every worker divides its loss by the true size of the global batch, so the sum over workers is the
exact mean gradient however unevenly the batch is cut. Buckets of the flat gradient buffer travel
while backward still computes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective, Pending
from phalanx.data.pipeline import Batch
from phalanx.engine.spans import span
from phalanx.engine.trained import FlatReplica
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.strategy.base import StepFacts, Strategy, average_buffers, make_equal
from phalanx.strategy.exchange.base import build_exchange, equalise
from phalanx.strategy.topology_trial import TopologyTrial
from phalanx.wire.moments import reach


class Allreduce(Strategy):
    """All workers hold the whole model and apply the same update."""

    def __init__(self, spec: AllreduceSpec) -> None:
        self._spec = spec
        self.noise: GradNoiseGauge = GradNoiseGauge()

    @override
    def attach(self, replica: FlatReplica, collective: Collective, *, equal: bool = False) -> None:
        self._replica = replica
        self._collective = collective
        self._exchange = build_exchange(self._spec.compression, replica, collective)
        self._topology = TopologyTrial(self._spec.topology, collective)
        self._overlap = OverlapMeter()
        if not equal:
            make_equal(replica, collective)

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        self._topology.settle(self._exchange.sums_bytes())
        self._overlap.begin()
        self._exchange.begin(step_index)
        result = self._replica.forward_backward(batch, self._start_bucket, step=step_index)
        overlapped_s = self._overlap.end(self._exchange.pending)
        computed = time.perf_counter()
        with span("all_reduce"):
            noted = self.note.start(result) if self.note is not None else None
            self._exchange.finish()
            if self._replica.counts(batch):
                self._weigh(batch)
            if noted is not None:
                noted.wait()
        self.noise.read_sum(
            self._replica.gradients,
            num_samples=result.num_samples,
            global_count=batch.global_count,
        )
        exchanged = time.perf_counter()
        self._replica.apply(lr)
        return StepFacts.of(
            result,
            exchange_s=exchanged - computed,
            apply_s=time.perf_counter() - exchanged,
            overlapped_s=overlapped_s if self._collective.size > 1 else 0.0,
        )

    def _start_bucket(self, index: int) -> None:
        """Start the exchange of a bucket during backward; the same order on every worker."""
        bucket = self._replica.buckets[index]
        # Before the exchange, which overwrites this worker's gradient with the sum.
        self.noise.read_own(self._replica.gradients[bucket.start : bucket.stop])
        with span("all_reduce"):
            self._overlap.look(self._exchange.pending)
            self._exchange.start(index)
        reach("bucket sent")

    def _weigh(self, batch: Batch) -> None:
        """Divide by what the losses of all workers counted, instead of by samples."""
        weight = torch.tensor([self._replica.gradient_weight], dtype=torch.float64)
        self._collective.all_reduce(weight)
        factor = batch.global_count / weight.item() if weight.item() > 0 else 1.0
        if factor != 1.0:
            self._replica.gradients.mul_(factor)

    @override
    def synchronize(self) -> None:
        average_buffers(self._replica, self._collective)
        if self._exchange.replicas_drift:
            equalise(self._replica, self._collective)

    @override
    def take_note(self) -> str | None:
        return self._exchange.take_note() or self._topology.take_note()

    @override
    def export_state(self) -> dict[str, Tensor]:
        return self._exchange.export_state() | self._topology.export_state()

    @override
    def import_state(self, state: dict[str, Tensor]) -> None:
        self._exchange.import_state(state)
        self._topology.import_state(state)


class GradNoiseGauge:
    """Measure squared gradient norms, for the gradient noise scale, at no extra traffic.

    Armed for single steps, it reads each bucket once before its exchange and the sum once after it.
    """

    def __init__(self) -> None:
        self._armed = False
        self._own = 0.0
        self._found = (0.0, 0.0)

    def arm(self) -> None:
        """Measure in the next step."""
        self._armed = True
        self._own = 0.0
        self._found = (0.0, 0.0)

    def read_own(self, part: Tensor) -> None:
        """Read a final bucket of this worker's gradient, before its exchange."""
        if self._armed:
            self._own += float(part.dot(part))

    def read_sum(self, gradients: Tensor, *, num_samples: int, global_count: int) -> None:
        """Read the gradient summed over all workers: the mean over the global batch."""
        if not self._armed:
            return
        self._armed = False
        # What a worker adds is its mean gradient times its share of the batch.
        scale = global_count / num_samples if num_samples else 0.0
        self._found = (self._own * scale * scale, float(gradients.dot(gradients)))

    def take(self) -> tuple[float, float]:
        """Return the squared norms of this worker's mean gradient and of that of all workers."""
        found, self._found = self._found, (0.0, 0.0)
        return found


class OverlapMeter:
    """Measure how much of a step's exchange hides behind the computation.

    Gloo's threads tell whether an exchange is over, not when it ended; it is polled when the next
    bucket is ready and when backward is over. A stretch between two polls counts in full if an
    exchange was still under way at its end, and half if all had finished by then: the true figure
    lies within half of those stretches. Time in which another worker had not begun yet counts as
    well, because the exchange is under way for this worker.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """Begin a new step, with no exchange under way."""
        self._began_s = None
        self._seconds = 0.0

    def look(self, pending: Sequence[Pending]) -> None:
        """Poll the exchanges started so far; called right before the next one is started."""
        now_s = time.perf_counter()
        if self._began_s is not None and pending:
            share = 0.5 if all(one.is_done() for one in pending) else 1.0
            self._seconds += share * (now_s - self._began_s)
        self._began_s = now_s

    def end(self, pending: Sequence[Pending]) -> float:
        """End backward; return the seconds in which an exchange was under way behind it."""
        self.look(pending)
        return self._seconds
