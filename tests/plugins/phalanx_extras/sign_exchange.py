"""Sum the signs of gradients (Karimireddy et al. 2019), in bf16."""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.engine.layout import Range
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import CompressionSpec
from phalanx.strategy.exchange.base import RESIDUAL, ReducedExchange


class SignExchange(ReducedExchange):
    """Send signs times their mean length."""

    def __init__(self, spec: CompressionSpec, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        self._residual = torch.zeros_like(replica.gradients)
        self._sent = torch.empty_like(replica.gradients, dtype=torch.bfloat16)

    @property
    def kept(self) -> dict[str, Tensor]:
        """The part of gradients that is still to be sent."""
        return {RESIDUAL: self._residual}

    def _encode(self, index: int, bucket: Range) -> Tensor:
        residual = self._residual[bucket.start : bucket.stop]
        residual.add_(self._replica.gradients[bucket.start : bucket.stop])
        sent = self._sent[bucket.start : bucket.stop]
        sent.copy_(residual.sign() * residual.abs().mean())
        residual.sub_(sent)
        return sent

    def _decode(self, bucket: Range) -> None:
        sums = self._sent[bucket.start : bucket.stop]
        self._replica.gradients[bucket.start : bucket.stop].copy_(sums)
