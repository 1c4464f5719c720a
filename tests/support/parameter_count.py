"""Count the parameters of a network by both customs.

Keras' "total" counts the running statistics of batch normalisation as parameters; torch does not.
Published numbers follow either, so both are given.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class ParameterCount(NamedTuple):
    """Numbers of floats in a network."""

    trainable: int
    """What gradients are computed for, and what travels between workers."""
    fixed: int
    """Frozen parameters and running statistics."""

    @property
    def total(self) -> int:
        """All of them: what a Keras summary calls the total."""
        return self.trainable + self.fixed


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count the floats of `model`; each shared parameter counts once."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    statistics = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    return ParameterCount(trainable=trainable, fixed=frozen + statistics)
