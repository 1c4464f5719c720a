"""Define what the training loop asks of a model: the engine's `Replica` fits, and plain torch.

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
    """A model that can be measured, saved and taken up again."""

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters in one row."""

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Measure one batch without learning."""

    def regularisation(self) -> float:
        """The present value of the L2 regulariser; 0 if there is none."""

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` returned; raises `EngineError` if it is of another model."""


@runtime_checkable
class Predictor(Protocol):
    """A learner that can say which class it takes each sample for."""

    def evaluate_into(self, batch: Batch, predicted: npt.NDArray[np.int64]) -> EvaluationSums:
        """Measure one batch, and write down each sample's class.

        Args:
            batch: The samples.
            predicted: One entry per sample; those that another worker measures are left alone.
        """
