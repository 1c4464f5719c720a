"""The L2 regulariser l2 · Σ w² over the kernels of a slice of the flat buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from phalanx.engine.layout import Range


class Regulariser:
    """Compute the regulariser's value and gradient; both are zero if `l2` is.

    Args:
        l2: Its strength.
        parameters: The slice; only read.
        kernels: Entries that it applies to, counted within `parameters`.
    """

    def __init__(self, l2: float, parameters: Tensor, kernels: Sequence[Range]) -> None:
        self._l2 = l2
        self._kernels = [(parameters[one.start : one.stop], one) for one in kernels if l2 > 0]

    def add_to(self, gradient: Tensor) -> None:
        """Add the regulariser's gradient to that of the slice, in place."""
        for kernel, part in self._kernels:
            gradient[part.start : part.stop].add_(kernel, alpha=2 * self._l2)

    def squared_norm(self, gradient: Tensor) -> float:
        """Return the squared norm that `gradient` would have after `add_to`, without writing."""
        total = float(gradient.dot(gradient))
        pull = 2 * self._l2
        for kernel, part in self._kernels:
            own = gradient[part.start : part.stop]
            total += pull * float(kernel.dot(2 * own + pull * kernel))
        return total

    def value(self) -> float:
        """Return l2 · Σ w²; slices add up to the whole."""
        return self._l2 * math.fsum(float(kernel.dot(kernel)) for kernel, _ in self._kernels)
