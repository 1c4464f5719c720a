"""Halve gradient traffic by bf16 with error feedback.

Notation: g gradient, e residual, q what is sent. p = g + e, q = bf16(p), e' = p - q. Over many
steps the sum of what was sent equals the sum of the gradients up to one residual, so no gradient
is lost for good.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.engine.layout import Range
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import CompressionSpec
from phalanx.strategy.exchange.base import RESIDUAL, ReducedExchange


class Bf16Exchange(ReducedExchange):
    """Send gradients in half the bytes.

    Args:
        spec: Without settings.
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    entry_bytes = 2

    def __init__(self, spec: CompressionSpec, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        self._residual = torch.zeros_like(replica.gradients)
        self._sent = torch.empty_like(replica.gradients, dtype=torch.bfloat16)

    @property
    @override
    def kept(self) -> dict[str, Tensor]:
        return {RESIDUAL: self._residual}

    @override
    def _encode(self, index: int, bucket: Range) -> Tensor:
        residual = self._residual[bucket.start : bucket.stop]
        sent = self._sent[bucket.start : bucket.stop]
        residual.add_(self._replica.gradients[bucket.start : bucket.stop])
        sent.copy_(residual)
        residual.sub_(sent)
        return sent

    @override
    def _decode(self, bucket: Range) -> None:
        sums = self._sent[bucket.start : bucket.stop]
        self._replica.gradients[bucket.start : bucket.stop].copy_(sums)
