"""Hold what comes out of a step; what goes into it is the data package's `Batch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class StepResult:
    """What one worker's forward and backward pass found."""

    loss_sum: float
    """Loss summed over this worker's samples, without the L2 regulariser."""
    num_correct: int
    """Samples whose largest output is the target; 0 for mean squared error."""
    num_samples: int
    """Samples of this worker in this step; may be 0."""
    forward_s: float
    """From the batch's arrival to the loss."""
    backward_s: float
    """From the loss to the last gradient, bucket callbacks included."""


class EvaluationSums(NamedTuple):
    """What one batch of an evaluation adds to the whole."""

    loss_sum: float
    num_correct: int
    num_samples: int
