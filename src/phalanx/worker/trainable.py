"""Interface of a model in the training loop: the engine's `Replica`, or plain torch.

How it is trained is `strategy.base.Strategy`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from phalanx.data.pipeline import Batch
from phalanx.engine.result import EvaluationSums


class Trainable(Protocol):
    """A model that can be evaluated, saved and restored."""

    @property
    def parameters(self) -> Tensor:
        """Return all trainable parameters in one row."""

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Evaluate one batch without learning."""

    def regularisation(self) -> float:
        """Return the present value of the L2 regulariser; 0 if there is none."""

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises `EngineError` if it is of another model."""


@runtime_checkable
class Predictor(Protocol):
    """A model that predicts the class of each sample."""

    def evaluate_into(self, batch: Batch, predicted: npt.NDArray[np.int64]) -> EvaluationSums:
        """Evaluate one batch, and write the predicted class of each sample.

        Args:
            batch: The samples.
            predicted: One entry per sample; those that another worker measures are left alone.
        """


@runtime_checkable
class OutputGiver(Protocol):
    """A model that gives its outputs."""

    def evaluate_outputs(self, batch: Batch) -> tuple[EvaluationSums, Tensor]:
        """Evaluate one batch, which is not empty, and return the tensor of predictions too.

        Raises:
            EngineError: The model returns none.
        """
