"""What goes into a step and what comes out of it.

`Batch` is how the engine sees the data package's batches; any object with these attributes will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Targets = npt.NDArray[np.integer] | npt.NDArray[np.floating]


class Batch(Protocol):
    """One worker's samples of one step."""

    @property
    def inputs(self) -> npt.NDArray[np.float32]:
        """float32, C-contiguous: (samples, height, width, channels) or (samples, features)."""

    @property
    def targets(self) -> Targets:
        """Class numbers for cross-entropy, numbers for mean squared error."""

    @property
    def global_count(self) -> int:
        """Samples of this step over all workers; evaluation does not look at it."""


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


class Evaluation(NamedTuple):
    """What one batch of an evaluation adds to the whole."""

    loss_sum: float
    num_correct: int
    num_samples: int
