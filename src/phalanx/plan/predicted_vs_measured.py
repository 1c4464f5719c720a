"""Compare predicted and measured values after a planned run. Pure."""

from __future__ import annotations

import msgspec

from phalanx.plan.measured import RunMeasures
from phalanx.plan.planfile import Plan
from phalanx.plan.result import Interval
from phalanx.records.summary import Summary


class PredictedVsMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of a planned run."""

    measure: str
    unit: str
    predicted: Interval
    measured: float

    @property
    def error(self) -> float:
        """Return measured over predicted, less one."""
        return self.measured / self.predicted.value - 1

    @property
    def is_inside(self) -> bool:
        """Return whether the measured value lies in the 90 % interval."""
        return self.predicted.low <= self.measured <= self.predicted.high


def compare_with_run(
    plan: Plan, summary: Summary, measures: RunMeasures | None = None
) -> list[PredictedVsMeasured]:
    """Compare predictions with a run; measures without a measured value are left out."""
    step_s = summary.global_batch / measures.samples_per_s if measures is not None else None
    prediction = plan.prediction
    pairs: list[tuple[str, str, Interval | None, float | None]] = [
        ("step", "s", prediction.step_s, step_s),
        ("training", "s", prediction.train_s, summary.train_s),
        ("in all", "s", prediction.total_s, summary.elapsed_s),
        ("energy", "J", prediction.energy_j, summary.energy_j),
    ]
    return [
        PredictedVsMeasured(measure=measure, unit=unit, predicted=predicted, measured=measured)
        for measure, unit, predicted, measured in pairs
        if predicted is not None and measured
    ]
