"""Compute the learning rate by samples seen, with the ramp after a switch; no framework."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.engine.schedule import learning_rate
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.switch import SwitchSpec


@dataclass(frozen=True)
class Ramp:
    """Raise the learning rate gradually after a switch to an asynchronous phase."""

    begin: int
    length: int
    start: float

    def factor(self, samples_seen: int) -> float:
        """Return the factor of the rate."""
        if samples_seen >= self.begin + self.length:
            return 1.0
        done = max(0, samples_seen - self.begin) / self.length
        return self.start + (1 - self.start) * done


def ramp_into(job: JobSpec, position: Position) -> Ramp | None:
    """Return the ramp of the asynchronous phase that the run is in, if it follows another."""
    switch = job.strategy
    assert isinstance(switch, SwitchSpec)
    if switch.ramp_steps == 0 or position.phase_begin == 0:
        return None
    length = switch.ramp_steps * job.global_batch
    return Ramp(begin=position.phase_begin, length=length, start=switch.ramp_from)


class Rate:
    """Learning rate by samples seen, ramp included; the same on servers and workers.

    Args:
        job: Gives the schedule.
        samples_per_epoch: Of one pass over the training data.
        ramp: After a switch.
    """

    def __init__(self, job: JobSpec, *, samples_per_epoch: int, ramp: Ramp | None = None) -> None:
        self._job = job
        self._samples_per_epoch = samples_per_epoch
        self._ramp = ramp

    def __call__(self, samples_seen: int) -> float:
        """Return the rate of a step that starts after so many samples.

        A script's own rate comes with each of its gradients: this then is the factor of it.
        """
        rate = 1.0
        if self._job.program is None:
            rate = learning_rate(
                self._job.schedule,
                peak=self._job.optimizer.lr,
                samples_seen=samples_seen,
                total_samples=self._samples_per_epoch * self._job.epochs,
                samples_per_epoch=self._samples_per_epoch,
            )
        return rate if self._ramp is None else rate * self._ramp.factor(samples_seen)
