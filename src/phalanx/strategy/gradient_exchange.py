"""Sum a worker's gradients over all workers, bucket by bucket, plain or compressed.

`Allreduce` starts a bucket during backward as soon as it is final and finishes all of them before
the update. What compression leaves out of a sum is kept as a residual and added to the worker's
next gradient (error feedback), so over many steps nothing is lost for good.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective, Pending
from phalanx.comm.compression import Bf16Compressor
from phalanx.engine.layout import Range
from phalanx.engine.trained import FlatReplica
from phalanx.spec.lockstep import AllreduceSpec

_RESIDUAL = "residual"


class GradientExchange(ABC):
    """Exchange the gradients of one replica; all workers start buckets in the same order.

    Args:
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    def __init__(self, replica: FlatReplica, collective: Collective) -> None:
        self._replica = replica
        self._collective = collective
        self.pending: list[Pending] = []
        """Exchanges of this step that have been started; by bucket."""

    @property
    def residual(self) -> Tensor | None:
        """What compression has left out so far; None: nothing ever is."""
        return None

    def start(self, index: int) -> None:
        """Start the sum of a bucket whose gradients are final."""
        bucket = self._replica.buckets[index]
        self.pending.append(self._collective.start_all_reduce(self._encode(index, bucket)))

    def finish(self) -> None:
        """Wait until the gradient buffer holds the sum over all workers."""
        # Buckets were started in rising order, so positions are bucket indices.
        for index, pending in enumerate(self.pending):
            pending.wait()
            self._decode(self._replica.buckets[index])
        self.pending.clear()

    @abstractmethod
    def _encode(self, index: int, bucket: Range) -> Tensor:
        """Return what is summed over workers for a bucket."""

    @abstractmethod
    def _decode(self, bucket: Range) -> None:
        """Write the summed bucket into the gradient buffer."""

    def export_state(self) -> dict[str, Tensor]:
        """Return residuals of all workers; all call it together."""
        if self.residual is None:
            return {}
        return {_RESIDUAL: torch.stack(self._collective.all_gather(self.residual))}

    def import_state(self, state: dict[str, Tensor]) -> None:
        """Restore residuals, maybe in a group of another size."""
        if self.residual is None or _RESIDUAL not in state:
            return
        residuals, rank = state[_RESIDUAL], self._collective.rank
        if len(residuals) == self._collective.size:
            self.residual.copy_(residuals[rank])
        elif rank == 0:
            # In a group of another size the first worker carries the residuals of all.
            self.residual.copy_(residuals.sum(0))


class PlainExchange(GradientExchange):
    """Send every gradient as it is."""

    @override
    def _encode(self, index: int, bucket: Range) -> Tensor:
        return self._replica.gradients[bucket.start : bucket.stop]

    @override
    def _decode(self, bucket: Range) -> None:
        return


class Bf16Exchange(GradientExchange):
    """Send gradients in half the bytes."""

    def __init__(self, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        self._compressor = Bf16Compressor(replica.gradients)

    @property
    @override
    def residual(self) -> Tensor:
        return self._compressor.residual

    @override
    def _encode(self, index: int, bucket: Range) -> Tensor:
        return self._compressor.compress(bucket.start, bucket.stop)

    @override
    def _decode(self, bucket: Range) -> None:
        self._compressor.decompress(bucket.start, bucket.stop)


def build_exchange(
    spec: AllreduceSpec, replica: FlatReplica, collective: Collective
) -> GradientExchange:
    """Build the exchange that a spec asks for."""
    if spec.compression == "bf16":
        return Bf16Exchange(replica, collective)
    if spec.compression == "powersgd":
        from phalanx.strategy.powersgd import PowerSgdExchange

        return PowerSgdExchange(replica, collective, rank=spec.approximation_rank)
    return PlainExchange(replica, collective)
