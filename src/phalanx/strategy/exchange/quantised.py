"""Sum gradients in 8 or 4 bits per entry, with error feedback.

Notation: N workers, a bucket cut into N pieces, p_i gradient plus residual of worker i. Every
worker sends Q(p_i) of each piece to the worker that owns it and keeps p_i - Q(p_i). The owner
sums in fp32, in the order of ranks, with its own p unrounded, sends Q(sum) to all and keeps
sum - Q(sum) in its residual of that piece. Each worker sends 2 (N - 1) / N quantised buckets, as a
ring does, and all read the same bytes back, so replicas stay equal bit by bit.
References: Seide et al. 2014 (error feedback); Tang et al. 2021 (both directions).
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.comm.quantise import dequantise, quantise, quantised_bytes
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import INT4_BLOCK, INT8_BLOCK, CompressionSpec, piece_blocks
from phalanx.strategy.exchange.base import RESIDUAL, BackgroundExchange


class QuantisedExchange(BackgroundExchange):
    """Send few bits per entry, and a scale per block.

    Args:
        spec: Without settings that matter here.
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    bits: int
    block: int

    def __init__(self, spec: CompressionSpec, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        self._residual = torch.zeros_like(replica.gradients)
        size = collective.size
        self._blocks = [piece_blocks(len(one), size, self.block) for one in replica.buckets]
        # Buckets are exchanged one after another, so all share the largest one's buffers.
        most = max(self._blocks, default=0)
        self._padded = torch.zeros(size * most * self.block)
        self._sent = torch.zeros(
            size * quantised_bytes(most, self.block, self.bits), dtype=torch.uint8
        )

    @property
    @override
    def kept(self) -> dict[str, Tensor]:
        return {RESIDUAL: self._residual}

    @override
    def _exchange(self, index: int) -> None:
        bucket, num_blocks = self._replica.buckets[index], self._blocks[index]
        size, rank = self._collective.size, self._collective.rank
        gradient = self._replica.gradients[bucket.start : bucket.stop]
        residual = self._residual[bucket.start : bucket.stop]
        flat = self._padded[: size * num_blocks * self.block]
        flat[len(bucket) :].zero_()
        torch.add(gradient, residual, out=flat[: len(bucket)])
        pieces = flat.view(size, num_blocks, self.block)
        sums = self._sum_piece(pieces)
        row = self._row(num_blocks)
        quantise(sums, row, self.bits)
        # The errors of others' pieces stay here; of the own piece, that of the sum.
        pieces[rank].copy_(sums)
        residual.copy_(flat[: len(bucket)])
        for number, sent in enumerate(self._collective.all_gather(row)):
            pieces[number].copy_(dequantise(sent, self.block, self.bits))
        gradient.copy_(flat[: len(bucket)])

    def _sum_piece(self, pieces: Tensor) -> Tensor:
        """Send the pieces of others, which keep their errors, and return the sum of the own one."""
        size, rank = self._collective.size, self._collective.rank
        length = quantised_bytes(pieces.shape[1], self.block, self.bits)
        rows = self._sent[: size * length].view(size, length)
        for number in range(size):
            if number != rank:
                quantise(pieces[number], rows[number], self.bits)
        received = self._collective.all_to_all(rows)
        sums = torch.zeros_like(pieces[rank])
        for number in range(size):
            own = number == rank
            sums.add_(pieces[rank] if own else dequantise(received[number], self.block, self.bits))
        return sums

    def _row(self, num_blocks: int) -> Tensor:
        return self._sent[: quantised_bytes(num_blocks, self.block, self.bits)]


class Int8Exchange(QuantisedExchange):
    """Send 8 bits per entry."""

    bits, block = 8, INT8_BLOCK


class Int4Exchange(QuantisedExchange):
    """Send 4 bits per entry."""

    bits, block = 4, INT4_BLOCK
