"""Learning-rate curves of a user."""

from __future__ import annotations


def square_root(
    samples_seen: float, *, total_samples: int, samples_per_epoch: int, floor: float
) -> float:
    """Return the factor on the peak rate: one minus the root of the share that is done."""
    return max(floor, 1 - (samples_seen / total_samples) ** 0.5)
