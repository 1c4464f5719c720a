"""The learning rate as a function of samples seen, never of steps.

A run keeps its curve when the batch size or the number of workers changes. Pure: no torch, no
state; the worker loop calls `learning_rate` before each step, and a resumed run asks again.

Notation: s samples seen before the step, S samples of the whole run, W = warmup · S. With f(s) the
factor of the schedule, the rate is peak · climb(s) · f(s), where climb rises linearly from
`warmup_from` at 0 to 1 at W and is 1 afterwards. Half a cosine runs from W to S.
"""

from __future__ import annotations

import math

from phalanx.spec.optimize import CosineSpec, MilestonesSpec, ScheduleSpec

# Shares such as 0.7 are not exact in binary; counts of samples are whole, so this cannot mislead.
_ROUNDING = 1e-6


def learning_rate(
    schedule: ScheduleSpec,
    *,
    peak: float,
    samples_seen: int,
    total_samples: int,
    samples_per_epoch: int,
) -> float:
    """The rate for the step that starts after `samples_seen` samples.

    Args:
        schedule: Which curve.
        peak: The optimiser's learning rate.
        samples_seen: Over all workers, since the start of the run; past the end is allowed.
        total_samples: Of the whole run as planned.
        samples_per_epoch: Of one pass over the training data.
    """
    warmup = schedule.warmup * total_samples
    climb = 1.0
    if samples_seen < warmup:
        climb = schedule.warmup_from + (1 - schedule.warmup_from) * samples_seen / warmup
    if isinstance(schedule, MilestonesSpec):
        moments = [share * total_samples for share in schedule.at]
        moments += [epoch * samples_per_epoch for epoch in schedule.at_epochs]
        num_passed = sum(samples_seen >= moment - _ROUNDING for moment in moments)
        return peak * climb * schedule.factor**num_passed
    if isinstance(schedule, CosineSpec):
        span = max(total_samples - warmup, 1)
        progress = min(max((samples_seen - warmup) / span, 0.0), 1.0)
        wave = (1 + math.cos(math.pi * progress)) / 2
        return peak * climb * (schedule.floor + (1 - schedule.floor) * wave)
    return peak * climb
