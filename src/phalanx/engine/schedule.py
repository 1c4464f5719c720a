"""Compute the learning rate as a function of samples seen, never of steps.

A run keeps its curve when the batch size or the number of workers changes. Pure: no torch, no
state; the worker loop calls `learning_rate` before each step, and a resumed run asks again.

Notation: s samples seen before the step, S samples of the whole run, W = warmup · S. With f(s) the
factor of the schedule, the rate is peak · climb(s) · f(s), where climb rises linearly from
`warmup_from` at 0 to 1 at W and is 1 afterwards. Half a cosine runs from W to S.
"""

from __future__ import annotations

from phalanx.spec.schedule import ScheduleSpec


def learning_rate(
    schedule: ScheduleSpec,
    *,
    peak: float,
    samples_seen: int,
    total_samples: int,
    samples_per_epoch: int,
) -> float:
    """Return the rate of the step that starts after `samples_seen` samples.

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
    decay = schedule.decay(
        samples_seen, total_samples=total_samples, samples_per_epoch=samples_per_epoch
    )
    return peak * climb * decay
