"""Compute the step at which a phase begins: by samples, epoch, or learning-rate decay. Pure."""

from __future__ import annotations

import math

from phalanx.spec.job import JobSpec
from phalanx.spec.schedule import MilestonesSpec
from phalanx.spec.switch import PhaseSpec
from phalanx.wire.switch import StepLimit

# Shares such as 0.7 are not exact in binary; samples are whole, so this tolerance is safe.
_ROUNDING = 1e-6


def boundary(phase: PhaseSpec, job: JobSpec, *, num_samples: int) -> StepLimit | None:
    """Return the step before which a phase begins; None: decided during the run.

    Args:
        phase: Any but the first.
        job: The whole job.
        num_samples: Training samples of an epoch.
    """
    if phase.at == "auto":
        return None
    total = num_samples * job.epochs
    if phase.at is not None:
        samples = phase.at * total
    elif phase.epoch is not None:
        samples = phase.epoch * num_samples
    else:
        assert phase.lr_drop is not None
        assert isinstance(job.schedule, MilestonesSpec)
        drop, schedule = phase.lr_drop - 1, job.schedule
        if schedule.at:
            samples = schedule.at[drop] * total
        else:
            samples = schedule.at_epochs[drop] * num_samples
    return limit_at(samples, num_samples=num_samples, global_batch=job.global_batch)


def limit_at(samples: float, *, num_samples: int, global_batch: int) -> StepLimit:
    """Return the first step that begins at or after so many samples."""
    epoch = math.floor((samples + _ROUNDING) / num_samples)
    within = max(0.0, samples - _ROUNDING - epoch * num_samples)
    step = math.ceil(within / global_batch)
    if step >= math.ceil(num_samples / global_batch):
        return StepLimit(epoch + 1, 0)
    return StepLimit(epoch, step)


def describe_moment(phase: PhaseSpec) -> str:
    """Describe when a phase begins by plan."""
    if phase.at is not None:
        return f"{phase.at:.0%} of the samples" if isinstance(phase.at, float) else phase.at
    if phase.epoch is not None:
        return f"epoch {phase.epoch:g}"
    return f"decay {phase.lr_drop} of the learning rate"
