"""The one path from outputs and targets to loss and accuracy, for training and evaluation alike.

Everything is a sum over samples, so that workers with unequal shares add up exactly; means are
taken once, where the global count is known.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from phalanx.errors import EngineError
from phalanx.spec.optimize import LossSpec


class Loss:
    """Computes what the spec asks to minimise."""

    def __init__(self, spec: LossSpec) -> None:
        self._spec = spec

    def sum_and_correct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Loss summed over samples (differentiable, float32), and how many are right (an integer).

        Outputs of a lower precision are widened first. The mean squared error of a sample is the
        mean over its outputs; nothing counts as right there.

        Raises:
            EngineError: Outputs and targets do not fit each other.
        """
        if self._spec.name == "mse":
            return _squared_error(outputs.float(), targets), torch.zeros((), dtype=torch.int64)
        return self._cross_entropy(outputs.float(), targets)

    def _cross_entropy(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
            raise EngineError(
                "cross-entropy needs outputs of shape (samples, classes) and whole numbers of "
                f"shape (samples,), not {tuple(outputs.shape)} and {targets.dtype} "
                f"{tuple(targets.shape)}"
            )
        try:
            loss = F.cross_entropy(
                outputs, targets, reduction="sum", label_smoothing=self._spec.label_smoothing
            )
        except (IndexError, ValueError, RuntimeError) as error:
            raise EngineError(
                f"targets do not fit the model's {outputs.shape[1]} outputs: {error}"
            ) from error
        with torch.no_grad():
            num_correct = (outputs.argmax(dim=1) == targets).sum()
        return loss, num_correct


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.numel() != targets.numel() or not targets.is_floating_point():
        raise EngineError(
            f"mse needs one number per output, not {targets.dtype} {tuple(targets.shape)} for "
            f"outputs of shape {tuple(outputs.shape)}; choose 'cross-entropy' for class labels"
        )
    num_outputs = max(outputs[0].numel(), 1) if len(outputs) else 1
    return F.mse_loss(outputs, targets.view_as(outputs), reduction="sum") / num_outputs
