"""What is measured of a model: figures over a part of the data, and of the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.records.predictions import PartPredictions


class PartFigures(Protocol):
    """Figures over one part of the data, wherever they were measured."""

    @property
    def loss(self) -> float:
        """Mean over the samples."""

    @property
    def accuracy(self) -> float:
        """Share of the samples."""

    @property
    def num_samples(self) -> int:
        """Samples that were measured."""

    @property
    def duration_s(self) -> float:
        """How long it took."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """What else the data is judged by."""


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy over a part, as means over its samples; and what else was asked for."""

    loss: float
    accuracy: float
    num_samples: int
    duration_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdicts: PartPredictions | None = None

    @classmethod
    def from_sums(
        cls, loss_sum: float, num_correct: float, num_samples: float, *, duration_s: float
    ) -> Measures:
        """Divide sums over samples by their number; no samples give zeros."""
        count = max(1.0, num_samples)
        return cls(
            loss=loss_sum / count,
            accuracy=num_correct / count,
            num_samples=int(num_samples),
            duration_s=duration_s,
        )


@dataclass(frozen=True)
class ModelFigures:
    """Identify the trained model in the outcome of a run.

    Attributes:
        num_parameters: Trainable ones.
        digest: SHA-256 of their bytes.
        regularisation: The L2 regulariser's value.
    """

    num_parameters: int
    digest: str
    regularisation: float
