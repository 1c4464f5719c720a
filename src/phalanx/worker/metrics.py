"""Sum up and record one worker's steps, for heartbeats and epoch metrics.

Imports no framework: the bootstrap needs it before torch is loaded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.records.events import Stall, Step
from phalanx.records.log import EventLog
from phalanx.wire.messages import Progress, WorkTimes

if TYPE_CHECKING:
    from phalanx.strategy.base import StepFacts


# Held before they are compared with those of other workers.
_MOST_EXCHANGES = 4096
_STEPS_PER_EVENT = ((100_000, 1), (1_000_000, 10))


@dataclass
class TimeSpent:
    """Breakdown of a worker's time in seconds; waiting is a part of exchanging."""

    input_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0
    overlapped_s: float = 0.0
    apply_s: float = 0.0


@dataclass
class OpenExchanges:
    """Exchanges whose waiting only a comparison with other workers can tell.

    All workers of a group have equally many after each step, so all find it full at the same one.
    """

    seconds: list[float] = field(default_factory=list)
    total_s: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether they must be compared now: an epoch may have any number of steps."""
        return len(self.seconds) >= _MOST_EXCHANGES

    def add(self, duration_s: float) -> None:
        """Count one exchange."""
        self.seconds.append(duration_s)
        self.total_s += duration_s


@dataclass
class WorkerMetrics:
    """Sum up this worker's steps; written by the training thread, read by the heartbeat's.

    A heartbeat may see one field a step ahead of another, which does no harm to a progress bar.
    """

    activity: str = "starting"
    is_starting: bool = True
    """Until all code is imported and the network is built."""
    epoch: int = 0
    step: int = 0
    lr: float = 0.0
    epoch_total: int = 0
    samples: int = 0
    spent: TimeSpent = field(default_factory=TimeSpent)
    sent_bytes: int = 0
    sent_before: int = 0
    """By the transports of earlier phases."""
    version: int = 0
    epoch_samples: int = 0
    epoch_loss_sum: float = 0.0
    epoch_correct: int = 0
    epoch_weight: float = 0.0
    """What the two sums are over: samples, or what the loss counts."""
    has_classes: bool = True
    """Whether a sample can be correct at all."""
    exchanges: OpenExchanges = field(default_factory=OpenExchanges)
    unwritten: Step | None = None
    """The sum of the last steps, where one event stands for several."""

    def begin_epoch(self, epoch: int, *, total: int, resumed: bool) -> None:
        """Reset the epoch's sums, unless the epoch is resumed from a checkpoint."""
        self.epoch = epoch
        self.epoch_total = total
        if resumed:
            return
        self.epoch_samples = 0
        self.epoch_loss_sum = 0.0
        self.epoch_correct = 0
        self.epoch_weight = 0.0
        self.exchanges = OpenExchanges()

    def add(self, facts: StepFacts, *, input_s: float, lr: float, sent_bytes: int) -> None:
        """Count one step."""
        self.step += 1
        self.lr = lr
        self.samples += facts.num_samples
        self.spent.input_s += input_s
        self.spent.compute_s += facts.forward_s + facts.backward_s
        self.spent.exchange_s += facts.exchange_s
        self.spent.wait_s += facts.wait_s or 0.0
        self.spent.overlapped_s += facts.overlapped_s
        self.spent.apply_s += facts.apply_s
        self.sent_bytes = sent_bytes
        self.epoch_samples += facts.num_samples
        self.epoch_loss_sum += facts.loss_sum
        self.epoch_correct += facts.num_correct
        self.epoch_weight += facts.divisor
        if facts.wait_s is None:
            self.exchanges.add(facts.exchange_s)

    def add_stall(self, duration_s: float, *, wait_s: float | None) -> None:
        """Count an exchange, or waiting, between two steps."""
        self.spent.exchange_s += duration_s
        self.spent.wait_s += wait_s or 0.0
        if wait_s is None:
            self.exchanges.add(duration_s)

    def times(self, *, sent_bytes: int) -> WorkTimes:
        """Return the breakdown of this worker's time over all phases.

        Args:
            sent_bytes: By the transport of the present phase.
        """
        return WorkTimes(
            sent_bytes=self.sent_before + sent_bytes,
            input_s=self.spent.input_s,
            compute_s=self.spent.compute_s,
            communication_s=self.spent.exchange_s - self.spent.wait_s,
            wait_s=self.spent.wait_s,
            apply_s=self.spent.apply_s,
            overlapped_s=self.spent.overlapped_s,
        )

    def progress(self) -> Progress:
        """Return the progress for the next heartbeat."""
        return Progress(
            epoch=self.epoch,
            step=self.step,
            samples=self.samples,
            epoch_samples=self.epoch_samples,
            epoch_total=self.epoch_total,
            loss_sum=self.epoch_loss_sum,
            num_correct=self.epoch_correct,
            weight=self.epoch_weight,
            has_classes=self.has_classes,
            activity=self.activity,
            is_starting=self.is_starting,
            lr=self.lr,
            input_s=self.spent.input_s,
            compute_s=self.spent.compute_s,
            exchange_s=self.spent.exchange_s,
            apply_s=self.spent.apply_s,
            wait_s=self.spent.wait_s,
            sent_bytes=self.sent_bytes,
            open_exchange_s=self.exchanges.total_s,
            version=self.version,
            cpu_s=time.process_time(),
        )


def record_step(
    log: EventLog,
    metrics: WorkerMetrics,
    facts: StepFacts,
    *,
    epoch: int,
    step: int,
    lr: float,
    input_s: float,
    sent_bytes: int,
    age_s: float = 0.0,
) -> None:
    """Add a step to the running totals and to the event log.

    Beyond 100,000 steps one event stands for ten, beyond a million for a hundred, so that the log
    of a run grows ever more slowly; sums stay exact.

    Args:
        log: Of this process.
        metrics: Of this worker.
        facts: Result of the step.
        epoch: Of its samples.
        step: Its number in the run; the ticket, where batches are handed out.
        lr: The learning rate at its point of the schedule.
        input_s: How long the worker waited for the batch.
        sent_bytes: Everything that this worker has sent so far in this phase.
        age_s: How long ago the step ended, if the worker learns of it only now.
    """
    sent_bytes += metrics.sent_before
    sent_before = metrics.sent_bytes
    metrics.add(facts, input_s=input_s, lr=lr, sent_bytes=sent_bytes)
    own = Step(
        epoch=epoch,
        step=step,
        num_samples=facts.num_samples,
        loss_sum=facts.loss_sum,
        num_correct=facts.num_correct,
        lr=lr,
        input_s=input_s,
        forward_s=facts.forward_s,
        backward_s=facts.backward_s,
        exchange_s=facts.exchange_s,
        apply_s=facts.apply_s,
        sent_bytes=sent_bytes - sent_before,
        overlapped_s=facts.overlapped_s,
        wait_s=facts.wait_s,
        weight=facts.weight if facts.weight != facts.num_samples else None,
    )
    if metrics.unwritten is not None and metrics.unwritten.epoch != epoch:
        write_steps(log, metrics)
    metrics.unwritten = own if metrics.unwritten is None else metrics.unwritten + own
    # By the number of the step, so that all workers of a group write the same ones.
    if metrics.step % steps_per_event(metrics.step) == 0:
        write_steps(log, metrics, age_s=age_s)


def steps_per_event(step: int) -> int:
    """Return how many steps one event stands for, from the number of the step."""
    return next((size for limit, size in _STEPS_PER_EVENT if step <= limit), 100)


def write_steps(log: EventLog, metrics: WorkerMetrics, *, age_s: float = 0.0) -> None:
    """Write the steps that are not in the log yet."""
    if metrics.unwritten is not None:
        log.record(metrics.unwritten, age_s=age_s)
        metrics.unwritten = None


def record_stall(
    log: EventLog,
    metrics: WorkerMetrics,
    *,
    epoch: int,
    what: str,
    duration_s: float,
    wait_s: float | None = None,
) -> None:
    """Record a stall between two steps in the running totals and in the log.

    Args:
        log: Of this process.
        metrics: Of this worker.
        epoch: Of the step before it.
        what: As in the event.
        duration_s: How long.
        wait_s: The part of it that was waiting for others; None: this worker alone cannot know.
    """
    metrics.add_stall(duration_s, wait_s=wait_s)
    log.record(Stall(epoch=epoch, what=what, duration_s=duration_s, wait_s=wait_s))
