"""Send gradients as they are."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.engine.layout import Range
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import CompressionSpec
from phalanx.strategy.exchange.base import ReducedExchange


class WholeExchange(ReducedExchange):
    """Send every gradient as it is.

    Args:
        spec: Without settings that matter here.
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    def __init__(self, spec: CompressionSpec, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)

    @override
    def _encode(self, index: int, bucket: Range) -> Tensor:
        return self._replica.gradients[bucket.start : bucket.stop]

    @override
    def _decode(self, bucket: Range) -> None:
        return
