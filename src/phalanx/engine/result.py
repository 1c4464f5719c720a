"""Results of a step and of an evaluation batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.errors import EngineError


@dataclass(frozen=True)
class StepResult:
    """Result of one worker's forward and backward pass."""

    loss_sum: float
    """Loss summed over this worker's share, without the L2 regulariser."""
    num_correct: int
    """Predictions whose largest output is the target, in units of `weight`; 0 for values."""
    num_samples: int
    """Samples of this worker in this step; may be 0."""
    forward_s: float
    """From the batch's arrival to the loss."""
    backward_s: float
    """From the loss to the last gradient, bucket callbacks included."""
    weight: float | None = None
    """What the sums are over, such as positions that count; None: the samples."""


class EvaluationSums(NamedTuple):
    """Sums over the samples of one batch of an evaluation."""

    loss_sum: float
    num_correct: int
    num_samples: int
    absolute_error: float = 0.0
    """Of a sample, the mean over its values; NaN: the model has other outputs than targets. 0 for
    classes."""
    squared_error: float = 0.0
    weight: float | None = None
    """What loss and correct ones are sums over; None: the samples."""

    def row(self) -> tuple[float, ...]:
        """Return all sums as numbers, to be added over batches and workers."""
        return (*self[:-1], self.num_samples if self.weight is None else self.weight)


def check_loss(loss_sum: float, *, step: int, rank: int) -> None:
    """Refuse a loss that is not finite: training could only go on with broken parameters.

    Raises:
        EngineError: It is not; says what to change.
    """
    if not math.isfinite(loss_sum):
        raise EngineError(
            f"the loss became {loss_sum} in step {step} on rank {rank}; lower optimizer.lr, "
            "add schedule.warmup or set optimizer.clip_norm",
            step=step,
            rank=rank,
        )
