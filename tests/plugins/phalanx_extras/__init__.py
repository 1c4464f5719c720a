"""Extend Phalanx from another package: optimiser, loss, metric, augmentation, source, launcher.

This module holds kinds, which are plain facts; what needs torch is imported where it is used.
"""

from __future__ import annotations

from phalanx.spec.base import ListOf
from phalanx.spec.optimize import OptimizerKind, OptimizerSpec


class LionSpec(OptimizerSpec):
    """Settings of Lion."""

    lr: float = 0.0001
    """Peak learning rate."""
    betas: ListOf[float] = (0.9, 0.99)
    """Shares of the momentum that are kept in a step, and for the next one."""


LION = OptimizerKind(
    name="lion",
    spec=LionSpec,
    update="phalanx_extras.lion:make_update",
    slots=("exp_avg",),
    momentum="exp_avg",
)
