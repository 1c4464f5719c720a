"""Send low-rank factors of gradients instead of gradients (PowerSGD).

Notation: M a gradient matrix plus its residual (n x m), Q the right factor of the step before
(m x r), N workers. P = sum of M Q over workers, orthonormalised; Q' = sum of M^T P; the sum of
gradients is approximated by P Q'^T, and each worker keeps M - P Q'^T / N as its residual. One power
iteration per step, started from the last factor, follows gradients that change slowly. The left
factors of a bucket travel while backward computes the rest; the right ones follow in one message.
Tensors that factors would not at least halve (biases, scales, small kernels) are sent as they are,
with the left factors.
References: Vogels, Karimireddy and Jaggi 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.engine.layout import Range, Slot
from phalanx.engine.trained import FlatReplica
from phalanx.strategy.gradient_exchange import GradientExchange

_FACTORS = "factors"
_SEED = 20190531
# Columns shorter than this carry no direction; they are drawn anew.
_TINY = 1e-20


@dataclass(frozen=True)
class _Matrix:
    """A gradient that is sent as two factors, with views of the buffers that hold them."""

    gradient: Tensor
    residual: Tensor
    left: Tensor
    right: Tensor
    fresh: Tensor
    """Random directions, equal on all workers, for columns that have died."""


@dataclass(frozen=True)
class _Plain:
    """A gradient that is sent as it is."""

    gradient: Tensor
    sent: Tensor


class PowerSgdExchange(GradientExchange):
    """Sum gradients by their factors of a given rank.

    The factors are equal on all workers after each sum, so replicas on like processors stay equal
    bit by bit; unlike ones may round the product differently, which `Allreduce.synchronize` evens.

    Args:
        replica: Its gradient buffer is summed in place.
        collective: The workers.
        rank: Of the factors; a matrix of lower rank is sent as it is.
    """

    def __init__(self, replica: FlatReplica, collective: Collective, *, rank: int) -> None:
        super().__init__(replica, collective)
        self._residual = torch.zeros_like(replica.gradients)
        self._slots = [
            [slot for slot in replica.layout.slots if bucket.start <= slot.start < bucket.stop]
            for bucket in replica.buckets
        ]
        wide = {slot for own in self._slots for slot in own if _pays(slot, rank)}
        self._right = torch.zeros(sum(_width(slot) * rank for slot in wide))
        self._messages: list[Tensor] = []
        self._matrices: list[list[_Matrix]] = []
        self._plain: list[list[_Plain]] = []
        self._lay_out(wide, rank)

    def _lay_out(self, wide: set[Slot], rank: int) -> None:
        gradients = self._replica.gradients
        draw = torch.Generator().manual_seed(_SEED)
        used = 0
        for own in self._slots:
            sizes = [slot.shape[0] * rank if slot in wide else _size(slot) for slot in own]
            message = torch.zeros(sum(sizes))
            self._messages.append(message)
            matrices, plain = [], []
            for slot, part in zip(own, torch.split(message, sizes), strict=True):
                gradient = gradients[slot.start : slot.stop]
                if slot not in wide:
                    plain.append(_Plain(gradient, part))
                    continue
                shape, width = (slot.shape[0], _width(slot)), _width(slot)
                fresh = torch.randn(width, rank, generator=draw)
                right = self._right[used : used + width * rank].view(width, rank)
                right.copy_(fresh)
                used += width * rank
                residual = self._residual[slot.start : slot.stop].view(shape)
                left = part.view(slot.shape[0], rank)
                matrices.append(_Matrix(gradient.view(shape), residual, left, right, fresh))
            self._matrices.append(matrices)
            self._plain.append(plain)

    @property
    @override
    def residual(self) -> Tensor:
        return self._residual

    @override
    def _encode(self, index: int, bucket: Range) -> Tensor:
        for one in self._matrices[index]:
            one.residual.add_(one.gradient)
            torch.mm(one.residual, one.right, out=one.left)
        for other in self._plain[index]:
            other.sent.copy_(other.gradient)
        return self._messages[index]

    @override
    def _decode(self, bucket: Range) -> None:
        raise NotImplementedError("all buckets are decoded together")

    @override
    def finish(self) -> None:
        for pending, matrices in zip(self.pending, self._matrices, strict=True):
            pending.wait()
            for one in matrices:
                orthonormalise(one.left)
                torch.mm(one.residual.T, one.left, out=one.right)
        self.pending.clear()
        if len(self._right):
            self._collective.all_reduce(self._right)
        share = -1.0 / self._collective.size
        for matrices, plain in zip(self._matrices, self._plain, strict=True):
            for one in matrices:
                torch.mm(one.left, one.right.T, out=one.gradient)
                one.residual.add_(one.gradient, alpha=share)
                # A column of zeros would stay zero for ever, whatever gradients come.
                dead = one.right.square().sum(0) < _TINY
                one.right.copy_(torch.where(dead, one.fresh, one.right))
            for other in plain:
                other.gradient.copy_(other.sent)

    @override
    def export_state(self) -> dict[str, Tensor]:
        return super().export_state() | {_FACTORS: self._right}

    @override
    def import_state(self, state: dict[str, Tensor]) -> None:
        super().import_state(state)
        if _FACTORS in state and len(state[_FACTORS]) == len(self._right):
            self._right.copy_(state[_FACTORS])


def orthonormalise(columns: Tensor) -> None:
    """Make the columns of a tall matrix orthonormal, in place (modified Gram-Schmidt).

    A column that the ones before it span becomes zero: it would be noise of any direction.
    """
    for number in range(columns.shape[1]):
        column = columns[:, number]
        before = column.norm()
        if number:
            basis = columns[:, :number]
            # Twice is enough (Kahan): the second pass removes what rounding left of the first.
            for _ in range(2):
                column.sub_(basis @ (basis.T @ column))
        norm = column.norm()
        if norm <= 1e-6 * before or norm == 0:
            column.zero_()
        else:
            column.div_(norm)


def _size(slot: Slot) -> int:
    return slot.stop - slot.start


def _width(slot: Slot) -> int:
    return _size(slot) // slot.shape[0]


def _pays(slot: Slot, rank: int) -> bool:
    """Whether the factors take at most half of the tensor's bytes."""
    return len(slot.shape) > 1 and 2 * rank * (slot.shape[0] + _width(slot)) <= _size(slot)
