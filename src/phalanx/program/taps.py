"""Follow the backward passes of a script: the one place where torch is patched.

`loss.backward()` and `scaler.scale(loss).backward()` both call `torch.autograd.backward`, which is
looked up when it is called; `torch.autograd.grad` does not, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., None]


@contextmanager
def tapped_backward(
    tap: Callable[[Backward, Sequence[Tensor], Any, dict[str, Any]], None],
) -> Iterator[None]:
    """Pass every backward pass of this process through a function, until the block is left.

    Args:
        tap: Called with the original, the roots, their gradients or None, and other arguments.
    """
    original = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **others: Any) -> None:
        names = ("retain_graph", "create_graph", "grad_variables", "inputs")
        others |= dict(zip(names, args, strict=False))
        roots = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        tap(original, roots, grad_tensors, others)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


def scaled_roots(roots: Sequence[Tensor], grads: Any, weight: float) -> tuple[Tensor | None, ...]:
    """Return the gradients at the roots of a backward pass, times a weight."""
    if grads is None:
        given: Sequence[Tensor | None] = (None,) * len(roots)
    else:
        given = (grads,) if isinstance(grads, Tensor) else tuple(grads)
    return tuple(
        torch.full_like(root, weight)
        if grad is None and root.numel() == 1
        else grad * weight
        if grad is not None
        else None
        for root, grad in zip(roots, given, strict=True)
    )
