"""Counting and writing down one step; the same for every kind of worker."""

from __future__ import annotations

from phalanx.records.events import Standstill, Step
from phalanx.records.log import EventLog
from phalanx.strategy.base import StepFacts
from phalanx.worker.tally import Tally


def record_step(
    log: EventLog,
    tally: Tally,
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

    Args:
        log: Of this process.
        tally: Of this worker.
        facts: What the step came to.
        epoch: Of its samples.
        step: Its number in the run; the ticket, where batches are handed out.
        lr: The learning rate at its point of the schedule.
        input_s: How long the worker waited for the batch.
        sent_bytes: Everything that this worker has sent so far in this phase.
        age_s: How long ago the step ended, if the worker learns of it only now.
    """
    sent_bytes += tally.sent_before
    sent_before = tally.sent_bytes
    tally.add(facts, input_s=input_s, lr=lr, sent_bytes=sent_bytes)
    log.record(
        Step(
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
        ),
        age_s=age_s,
    )


def record_standstill(
    log: EventLog,
    tally: Tally,
    *,
    epoch: int,
    what: str,
    duration_s: float,
    wait_s: float | None = None,
) -> None:
    """Add a time without computing, between two steps, to the running totals and to the log.

    Args:
        log: Of this process.
        tally: Of this worker.
        epoch: Of the step before it.
        what: As in the event.
        duration_s: How long.
        wait_s: The part of it that was waiting for others; None: this worker alone cannot know.
    """
    tally.stand_still(duration_s, wait_s=wait_s)
    log.record(Standstill(epoch=epoch, what=what, duration_s=duration_s, wait_s=wait_s))
