"""Slices of a tensor, one owner each, and the order in which an owner adds: pure.

A sum is a left fold over the members in rank order, ((a0 + a1) + a2) + …, whatever arrives first:
every member gets the same bits, and a loop over ranks gets them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from phalanx.comm.base import Reduction

# Slices begin at multiples of a cache line's worth of floats.
_ALIGNMENT = 16
# torch would spread a longer operation over several threads, of which this thread has none.
_TORCH_PIECE = 1 << 15
_NUMPY: dict[Reduction, Callable[..., Any]] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
}
_TORCH: dict[Reduction, Callable[..., Any]] = {
    "sum": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
}
_OF_TORCH = frozenset({torch.bfloat16, torch.float16})


def slice_bounds(num_elements: int, size: int) -> list[tuple[int, int]]:
    """Return begin and end of each member's slice; the last ones may be empty."""
    length = -(-num_elements // size)
    length = -(-length // _ALIGNMENT) * _ALIGNMENT
    return [
        (min(num_elements, rank * length), min(num_elements, (rank + 1) * length))
        for rank in range(size)
    ]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's memory as one row.

    Raises:
        ValueError: It has no memory of its own in one piece.
    """
    if not tensor.is_contiguous():
        raise ValueError("a tensor that is exchanged must be contiguous")
    return tensor.detach().view(-1)


def byte_view(row: torch.Tensor) -> memoryview:
    """Return the bytes of a row, to be read and written in place."""
    # numpy's arrays are buffers; its stubs do not say so on Python 3.11.
    memory: Any = row.view(torch.uint8).numpy()
    return memoryview(memory) if row.numel() else memoryview(bytearray())


def fold(target: torch.Tensor, parts: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """Reduce equal parts, in their order, into a target.

    The target may be one of the parts. The first of the others may be overwritten.
    """
    if not parts:
        target.zero_()
        return
    if target.dtype in _OF_TORCH:
        for begin in range(0, target.numel(), _TORCH_PIECE):
            piece = slice(begin, begin + _TORCH_PIECE)
            _fold(
                target[piece],
                [part[piece] for part in parts],
                _TORCH[reduction],
                lambda one, other: one.copy_(other),
            )
    else:
        _fold(target.numpy(), [part.numpy() for part in parts], _NUMPY[reduction], np.copyto)


def _fold(
    target: Any, parts: Sequence[Any], add: Callable[..., Any], copy: Callable[..., Any]
) -> None:
    first, *others = parts
    if not others:
        if first is not target:
            copy(target, first)
        return
    for part in others[:-1]:
        add(first, part, out=first)
    add(first, others[-1], out=target)
