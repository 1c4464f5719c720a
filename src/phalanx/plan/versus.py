"""Predicted and measured side by side, after a planned run. Pure."""

from __future__ import annotations

import msgspec

from phalanx.plan.planfile import Plan
from phalanx.plan.result import Interval
from phalanx.records.summary import Summary


class Versus(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of a planned run."""

    measure: str
    unit: str
    predicted: Interval
    measured: float

    @property
    def error(self) -> float:
        """Measured over predicted, less one."""
        return self.measured / self.predicted.value - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured value lies in the 90 % interval."""
        return self.predicted.low <= self.measured <= self.predicted.high


def compare_with_run(plan: Plan, summary: Summary) -> list[Versus]:
    """What was predicted, against what the run came to; measures that nobody took are left out."""
    prediction = plan.prediction
    pairs: list[tuple[str, str, Interval | None, float | None]] = [
        ("step", "s", prediction.step_s, _step_s(summary)),
        ("training", "s", prediction.train_s, summary.train_s),
        ("in all", "s", prediction.total_s, summary.elapsed_s),
        ("energy", "J", prediction.energy_j, summary.energy_j),
    ]
    return [
        Versus(measure=measure, unit=unit, predicted=predicted, measured=measured)
        for measure, unit, predicted, measured in pairs
        if predicted is not None and measured
    ]


def _step_s(summary: Summary) -> float | None:
    """Training time of one global batch."""
    if not summary.samples:
        return None
    return summary.train_s * summary.global_batch / summary.samples
