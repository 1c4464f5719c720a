"""Compute loss and accuracy from outputs and targets, for training and evaluation alike.

Everything is a sum over samples, so that workers with unequal shares add up exactly; means are
taken once, where the global count is known. The built-in losses sum in one kernel; those of other
packages return one loss per sample and are summed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from phalanx.errors import EngineError
from phalanx.spec.optimize import LossSpec
from phalanx.spec.registry import load


class Loss:
    """Compute the loss that the spec names."""

    def __init__(self, spec: LossSpec) -> None:
        self._name = spec.name
        self._function = cast("Callable[..., Tensor]", load(spec.kind.function))
        self._arguments = dict(spec.arguments)

    def sum_and_correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss summed over samples (float32), and the number of correct ones (int).

        The loss is differentiable; outputs of a lower precision are widened first. A sample is
        correct if its largest output is that of its class; without class targets none counts as
        correct.

        Raises:
            EngineError: Outputs and targets do not fit each other.
        """
        outputs = outputs.float()
        losses = self._function(outputs, targets, **self._arguments)
        if losses.ndim and losses.shape != (len(targets),):
            raise EngineError(
                f"loss '{self._name}' returned {tuple(losses.shape)} for {len(targets)} samples; "
                "it must return one number for each"
            )
        total = losses.sum() if losses.ndim else losses
        if targets.is_floating_point() or outputs.ndim != 2:
            return total, torch.zeros((), dtype=torch.int64)
        with torch.no_grad():
            return total, (outputs.argmax(dim=1) == targets).sum()


def error_sums(outputs: Tensor, targets: npt.NDArray[Any]) -> tuple[float, float]:
    """Return absolute and squared error of predicted values, as `EvaluationSums` has them."""
    if targets.dtype.kind != "f":
        return 0.0, 0.0
    if outputs.numel() != targets.size:
        return math.nan, math.nan
    wanted = torch.from_numpy(np.array(targets, dtype=np.float64)).view(len(targets), -1)
    errors = outputs.detach().double().view(wanted.shape) - wanted
    return float(errors.abs().mean(dim=1).sum()), float(errors.square().mean(dim=1).sum())


def cross_entropy(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> Tensor:
    """Sum the cross-entropy over samples."""
    if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
        raise EngineError(
            "cross-entropy needs outputs of shape (samples, classes) and whole numbers of "
            f"shape (samples,), not {tuple(outputs.shape)} and {targets.dtype} "
            f"{tuple(targets.shape)}"
        )
    try:
        return F.cross_entropy(
            outputs, targets, reduction="sum", label_smoothing=spec.label_smoothing
        )
    except (IndexError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"targets do not fit the model's {outputs.shape[1]} outputs: {error}"
        ) from error


def squared_error(outputs: Tensor, targets: Tensor, *, spec: LossSpec) -> Tensor:
    """Sum the squared error over samples; that of a sample is the mean over its outputs."""
    if outputs.numel() != targets.numel() or not targets.is_floating_point():
        raise EngineError(
            f"mse needs one number per output, not {targets.dtype} {tuple(targets.shape)} for "
            f"outputs of shape {tuple(outputs.shape)}; choose 'cross-entropy' for class labels"
        )
    num_outputs = max(outputs[0].numel(), 1) if len(outputs) else 1
    return F.mse_loss(outputs, targets.view_as(outputs), reduction="sum") / num_outputs
