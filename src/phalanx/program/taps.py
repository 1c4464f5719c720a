"""Follow the backward passes and the clipping of a script: the one place where torch is patched.

`loss.backward()` and `scaler.scale(loss).backward()` both call `torch.autograd.backward`, which is
looked up when it is called; `torch.autograd.grad` does not, and is left alone. Clipping is patched
before the script imports it.
"""

from __future__ import annotations

import functools
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


@contextmanager
def tapped_clipping(tap: Callable[[list[Tensor], float, float], Tensor | None]) -> Iterator[None]:
    """Ask a function before gradients are clipped by their norm, until the block is left.

    Args:
        tap: Called with the parameters, the largest norm and the kind of norm; what it returns is
            the norm of gradients that stay as they are. None: they are clipped as ever.
    """
    original = torch.nn.utils.clip_grad_norm_

    @functools.wraps(original)
    def clip(parameters: Any, max_norm: float, norm_type: float = 2.0, **others: Any) -> Tensor:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        norm = tap(given, float(max_norm), float(norm_type))
        return original(given, max_norm, norm_type, **others) if norm is None else norm

    places: tuple[Any, ...] = (torch.nn.utils, torch.nn.utils.clip_grad)
    for place in places:
        place.clip_grad_norm_ = clip
    try:
        yield
    finally:
        for place in places:
            place.clip_grad_norm_ = original


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
