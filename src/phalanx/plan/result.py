"""Define the records of a prediction: values with intervals, and the parts of a step's time.

Plain records; they are written into plan.json unchanged.
"""

from __future__ import annotations

import math

import msgspec

# Half width of a normal distribution's 90 % interval, in standard deviations.
_Z90 = 1.6449


class Interval(msgspec.Struct, frozen=True):
    """A value and its 90 % interval."""

    value: float
    low: float
    high: float

    def __mul__(self, factor: float) -> Interval:
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def __add__(self, other: Interval) -> Interval:
        """Return the sum of two values with independent errors."""
        value = self.value + other.value
        below = math.hypot(self.value - self.low, other.value - other.low)
        above = math.hypot(self.high - self.value, other.high - other.value)
        return Interval(value, value - below, value + above)


def around(value: float, error: float) -> Interval:
    """Return the interval of a value whose logarithm has this standard deviation."""
    spread = math.exp(_Z90 * error)
    return Interval(value, value / spread, value * spread)


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of a mean worker's step time."""

    compute_s: float
    communication_s: float
    wait_s: float
    apply_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Return the sum of all parts."""
        return self.compute_s + self.communication_s + self.wait_s + self.apply_s

    def scaled(self, factor: float, *, exchange: float) -> StepParts:
        """Return the parts scaled by a factor, and communication by a separate one."""
        return StepParts(
            compute_s=self.compute_s * factor,
            communication_s=self.communication_s * exchange,
            wait_s=self.wait_s * factor,
            apply_s=self.apply_s * factor,
        )


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted throughput of a strategy, returned by the models of the families."""

    family: str
    samples_per_s: float
    parts: StepParts
    """Of one global batch."""
    busy: tuple[float, ...]
    """Share of the time in which each worker computes."""
    server_busy: float = 0.0
    """Utilisation of each server."""
    staleness: float = 0.0
    """Mean number of updates by others between a worker's read and its own update."""
    sent_bytes: float = 0.0
    """By each worker for one global batch."""
    tail_s: float = 0.0
    """Lost at the end of each epoch, when the last workers finish alone."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted time, cost, energy and memory of a candidate."""

    step_s: Interval
    """One global batch."""
    samples_per_s: Interval
    train_s: Interval
    """All steps of all epochs."""
    total_s: Interval
    """Including start-up, evaluation and checkpoints."""
    parts: StepParts
    memory_bytes: dict[str, int]
    """Peak memory of each machine."""
    sent_bytes_per_step: float
    cost: Interval | None = None
    energy_j: Interval | None = None
    staleness: float = 0.0
    family: str = ""
