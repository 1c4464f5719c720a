"""Send low-rank factors of gradients instead of gradients (PowerSGD).

Notation: M a gradient matrix plus its residual (n x m), Q the right factor of the step before
(m x r), N workers. P = sum of M Q over workers, orthonormalised; Q' = sum of M^T P; the sum of
gradients is approximated by P Q'^T, and each worker keeps M - P Q'^T / N as its residual. One power
iteration per step, started from the last factor, follows gradients that change slowly. All left
factors of a bucket travel in one message and all right ones in another, while backward computes the
rest. Tensors that factors would not at least halve (biases, scales, small kernels) are sent as they
are, with the left factors.
References: Vogels, Karimireddy and Jaggi 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.engine.layout import Slot
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import PowerSgdSpec
from phalanx.strategy.exchange.base import RESIDUAL, BackgroundExchange

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


@dataclass(frozen=True)
class _Bucket:
    """The messages of a bucket, and the tensors in them."""

    left: Tensor
    """Left factors, and what is sent as it is."""
    right: Tensor
    matrices: tuple[_Matrix, ...]
    plain: tuple[_Plain, ...]


class PowerSgdExchange(BackgroundExchange):
    """Sum gradients by their factors of low rank.

    The factors are equal on all workers after each sum, so replicas on like processors stay equal
    bit by bit; unlike ones may round the product differently, which `Allreduce.synchronize` evens.

    Args:
        spec: The rank.
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    replicas_drift = True

    def __init__(self, spec: PowerSgdSpec, replica: FlatReplica, collective: Collective) -> None:
        super().__init__(replica, collective)
        self._rank = spec.rank
        self._residual = torch.zeros_like(replica.gradients)
        slots = [
            [slot for slot in replica.layout.slots if bucket.start <= slot.start < bucket.stop]
            for bucket in replica.buckets
        ]
        wide = {slot for own in slots for slot in own if spec.factors(slot.shape) is not None}
        lengths = [sum(_width(slot) * spec.rank for slot in own if slot in wide) for own in slots]
        self._right = torch.zeros(sum(lengths))
        draw = torch.Generator().manual_seed(_SEED)
        self._buckets = [
            self._lay_out(own, wide, right, draw)
            for own, right in zip(slots, torch.split(self._right, lengths), strict=True)
        ]

    def _lay_out(
        self, own: list[Slot], wide: set[Slot], right: Tensor, draw: torch.Generator
    ) -> _Bucket:
        rank, gradients = self._rank, self._replica.gradients
        sizes = [slot.shape[0] * rank if slot in wide else _size(slot) for slot in own]
        message = torch.zeros(sum(sizes))
        matrices, plain, used = [], [], 0
        for slot, part in zip(own, torch.split(message, sizes), strict=True):
            gradient = gradients[slot.start : slot.stop]
            if slot not in wide:
                plain.append(_Plain(gradient, part))
                continue
            shape, width = (slot.shape[0], _width(slot)), _width(slot)
            fresh = torch.randn(width, rank, generator=draw)
            factor = right[used : used + width * rank].view(width, rank).copy_(fresh)
            used += width * rank
            residual = self._residual[slot.start : slot.stop].view(shape)
            left = part.view(slot.shape[0], rank)
            matrices.append(_Matrix(gradient.view(shape), residual, left, factor, fresh))
        return _Bucket(message, right, tuple(matrices), tuple(plain))

    @property
    @override
    def kept(self) -> dict[str, Tensor]:
        return {RESIDUAL: self._residual}

    @override
    def sums_bytes(self) -> list[int]:
        messages = [(one.left, one.right) if one.matrices else (one.left,) for one in self._buckets]
        return [message.nbytes for pair in messages for message in pair]

    @override
    def _exchange(self, index: int) -> None:
        bucket = self._buckets[index]
        for one in bucket.matrices:
            one.residual.add_(one.gradient)
            torch.mm(one.residual, one.right, out=one.left)
        for other in bucket.plain:
            other.sent.copy_(other.gradient)
        self._collective.all_reduce(bucket.left)
        for other in bucket.plain:
            other.gradient.copy_(other.sent)
        if not bucket.matrices:
            return
        for one in bucket.matrices:
            orthonormalise(one.left)
            torch.mm(one.residual.T, one.left, out=one.right)
        self._collective.all_reduce(bucket.right)
        for one in bucket.matrices:
            torch.mm(one.left, one.right.T, out=one.gradient)
            one.residual.add_(one.gradient, alpha=-1.0 / self._collective.size)
            # A column of zeros would stay zero for ever, whatever gradients come.
            dead = one.right.square().sum(0) < _TINY
            one.right.copy_(torch.where(dead, one.fresh, one.right))

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
