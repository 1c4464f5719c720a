"""Running totals of one worker: what heartbeats show and what the epoch's figures are made of.

Imports no framework: the bootstrap needs it before torch is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.wire.messages import Progress, WorkTimes

if TYPE_CHECKING:
    from phalanx.strategy.base import StepFacts


@dataclass
class Tally:
    """Sums over this worker's steps; written by the training thread, read by the heartbeat's.

    A heartbeat may see one field a step ahead of another, which does no harm to a progress bar.
    """

    activity: str = "starting"
    epoch: int = 0
    step: int = 0
    lr: float = 0.0
    epoch_total: int = 0
    samples: int = 0
    input_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0
    overlapped_s: float = 0.0
    apply_s: float = 0.0
    sent_bytes: int = 0
    sent_before: int = 0
    """By the transports of earlier phases."""
    version: int = 0
    epoch_samples: int = 0
    epoch_loss_sum: float = 0.0
    epoch_correct: int = 0
    exchanges: list[float] = field(default_factory=list)
    """Those of the epoch whose waiting only a comparison with the other workers can tell."""

    def begin_epoch(self, epoch: int, *, total: int, resumed: bool) -> None:
        """Start the epoch's own sums at zero, unless it goes on where a checkpoint left it."""
        self.epoch = epoch
        self.epoch_total = total
        if resumed:
            return
        self.epoch_samples = 0
        self.epoch_loss_sum = 0.0
        self.epoch_correct = 0
        self.exchanges = []

    def add(self, facts: StepFacts, *, input_s: float, lr: float, sent_bytes: int) -> None:
        """Count one step."""
        self.step += 1
        self.lr = lr
        self.samples += facts.num_samples
        self.input_s += input_s
        self.compute_s += facts.forward_s + facts.backward_s
        self.exchange_s += facts.exchange_s
        self.wait_s += facts.wait_s or 0.0
        self.overlapped_s += facts.overlapped_s
        self.apply_s += facts.apply_s
        self.sent_bytes = sent_bytes
        self.epoch_samples += facts.num_samples
        self.epoch_loss_sum += facts.loss_sum
        self.epoch_correct += facts.num_correct
        if facts.wait_s is None:
            self.exchanges.append(facts.exchange_s)

    def stand_still(self, duration_s: float, *, wait_s: float | None) -> None:
        """Count an exchange, or waiting, between two steps."""
        self.exchange_s += duration_s
        self.wait_s += wait_s or 0.0
        if wait_s is None:
            self.exchanges.append(duration_s)

    def times(self, *, sent_bytes: int) -> WorkTimes:
        """Where this worker's time went, in all phases.

        Args:
            sent_bytes: By the transport of the present phase.
        """
        return WorkTimes(
            sent_bytes=self.sent_before + sent_bytes,
            input_s=self.input_s,
            compute_s=self.compute_s,
            communication_s=self.exchange_s - self.wait_s,
            wait_s=self.wait_s,
            apply_s=self.apply_s,
            overlapped_s=self.overlapped_s,
        )

    def progress(self) -> Progress:
        """What the next heartbeat says."""
        return Progress(
            epoch=self.epoch,
            step=self.step,
            samples=self.samples,
            epoch_samples=self.epoch_samples,
            epoch_total=self.epoch_total,
            loss_sum=self.epoch_loss_sum,
            num_correct=self.epoch_correct,
            activity=self.activity,
            lr=self.lr,
            input_s=self.input_s,
            compute_s=self.compute_s,
            exchange_s=self.exchange_s,
            apply_s=self.apply_s,
            wait_s=self.wait_s,
            sent_bytes=self.sent_bytes,
            open_exchange_s=sum(self.exchanges),
            version=self.version,
        )
