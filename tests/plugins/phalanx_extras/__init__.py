"""Extend Phalanx from another package: an optimiser, a loss, a metric, an augmentation, a source.

This module holds kinds, which are plain facts; what needs torch is imported where it is used.
"""

from __future__ import annotations

from phalanx.spec.base import ListOf, Spec
from phalanx.spec.optimize import OptimizerKind


class LionSettings(Spec):
    """Settings of Lion, besides `lr` and `weight_decay`."""

    betas: ListOf[float] = (0.9, 0.99)
    """How much of the momentum is kept in a step, and for the next one."""


LION = OptimizerKind(
    "lion",
    update="phalanx_extras.lion:make_update",
    slots=("exp_avg",),
    momentum="exp_avg",
    settings=LionSettings,
)
