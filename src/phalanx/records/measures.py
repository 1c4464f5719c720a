"""Define figures of a model: loss, accuracy and metrics over a part, size and digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.records.predictions import PartPredictions


class PartFigures(Protocol):
    """Figures over one part of the data, of any process that measured them."""

    @property
    def loss(self) -> float | None:
        """Mean over the samples; None: a script has not reported it."""

    @property
    def accuracy(self) -> float | None:
        """Share of the samples; None: the targets are no classes."""

    @property
    def num_samples(self) -> int:
        """Samples that were measured."""

    @property
    def duration_s(self) -> float:
        """Seconds that the evaluation took."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics other than accuracy."""


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy over a part, as means over its samples (or what its loss counts).

    Metrics and predictions come with them.

    Targets that are no classes have no accuracy.
    """

    loss: float | None
    accuracy: float | None
    num_samples: int
    duration_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdicts: PartPredictions | None = None

    @classmethod
    def from_sums(
        cls,
        loss_sum: float,
        num_correct: float,
        num_samples: float,
        *,
        duration_s: float,
        has_classes: bool,
        weight: float | None = None,
    ) -> Measures:
        """Divide sums by what they are over: `weight`, or samples; nothing gives zeros."""
        divisor = max(1.0, num_samples) if weight is None else weight or 1.0
        return cls(
            loss=loss_sum / divisor,
            accuracy=num_correct / divisor if has_classes else None,
            num_samples=int(num_samples),
            duration_s=duration_s,
        )


@dataclass(frozen=True)
class ModelFigures:
    """Size and digest of the trained model in the outcome of a run.

    Attributes:
        num_parameters: Trainable ones.
        digest: SHA-256 of their bytes.
        regularisation: The L2 regulariser's value.
    """

    num_parameters: int
    digest: str
    regularisation: float
