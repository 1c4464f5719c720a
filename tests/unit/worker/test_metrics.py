from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from phalanx.records.events import Step
from phalanx.records.log import EventLog, read_events
from phalanx.strategy.base import StepFacts
from phalanx.worker.metrics import WorkerMetrics, record_step, steps_per_event, write_steps

FACTS = StepFacts(
    num_samples=10,
    loss_sum=20.0,
    num_correct=3,
    forward_s=1.0,
    backward_s=2.0,
    exchange_s=4.0,
    apply_s=8.0,
)


def counted(steps: int) -> WorkerMetrics:
    metrics = WorkerMetrics()
    metrics.begin_epoch(0, total=100, resumed=False)
    for step in range(steps):
        metrics.add(FACTS, input_s=0.5, lr=0.1 * step, sent_bytes=1000 * (step + 1))
    return metrics


def test_steps_add_up_in_the_heartbeat() -> None:
    metrics = counted(2)
    metrics.activity = "training"
    progress = metrics.progress()
    assert (progress.step, progress.samples, progress.epoch_samples) == (2, 20, 20)
    assert (progress.loss_sum, progress.num_correct, progress.epoch_total) == (40.0, 6, 100)
    assert (progress.input_s, progress.compute_s) == (1.0, 6.0)
    assert (progress.exchange_s, progress.apply_s) == (8.0, 16.0)
    assert (progress.lr, progress.sent_bytes, progress.activity) == (0.1, 2000, "training")
    assert metrics.exchanges.seconds == [4.0, 4.0]
    assert progress.open_exchange_s == 8.0


def test_a_new_epoch_starts_its_own_sums_at_zero_and_keeps_the_others() -> None:
    metrics = counted(3)
    metrics.begin_epoch(1, total=100, resumed=False)
    progress = metrics.progress()
    assert (progress.epoch, progress.epoch_samples, progress.loss_sum) == (1, 0, 0.0)
    assert progress.num_correct == 0
    assert metrics.exchanges.seconds == []
    assert progress.open_exchange_s == 0.0
    assert (progress.samples, progress.step) == (30, 3)


def test_a_resumed_epoch_goes_on_with_its_sums() -> None:
    metrics = WorkerMetrics(epoch_samples=50, epoch_loss_sum=100.0, epoch_correct=20)
    metrics.begin_epoch(4, total=100, resumed=True)
    metrics.add(FACTS, input_s=0.0, lr=0.1, sent_bytes=0)
    progress = metrics.progress()
    assert (progress.epoch, progress.epoch_samples) == (4, 60)
    assert (progress.loss_sum, progress.num_correct) == (120.0, 23)


def test_ten_million_steps_take_as_much_log_as_a_few_hundred_thousand() -> None:
    bounds = [0, 100_000, 1_000_000, 10_000_000]
    events = [(end - begin) // steps_per_event(end) for begin, end in pairwise(bounds)]
    assert events == [100_000, 90_000, 90_000]


def test_one_event_may_stand_for_several_steps_and_sums_stay_exact(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    metrics = WorkerMetrics(step=99_990)
    metrics.begin_epoch(0, total=100, resumed=False)
    with EventLog(path) as log:
        for step in range(99_991, 100_046):
            record_step(
                log,
                metrics,
                FACTS,
                epoch=0 if step <= 100_023 else 1,
                step=step,
                lr=0.1,
                input_s=0.5,
                sent_bytes=100 * (step - 99_990),
            )
        write_steps(log, metrics)
        write_steps(log, metrics)
    steps = [event for event in read_events(path) if isinstance(event, Step)]
    # Each up to 100,000; then by tens, cut at the end of the epoch and of the run.
    assert [one.num_steps for one in steps] == [1] * 10 + [10, 10, 3, 7, 10, 5]
    assert [one.step for one in steps[10:]] == [
        100_010,
        100_020,
        100_023,
        100_030,
        100_040,
        100_045,
    ]
    assert sum(one.num_samples for one in steps) == 550
    assert sum(one.sent_bytes for one in steps) == 5500
    assert sum(one.input_s for one in steps) == pytest.approx(27.5)
    assert {one.wait_s for one in steps} == {None}


def test_the_exchanges_of_a_long_epoch_are_compared_before_they_are_too_many() -> None:
    metrics = counted(4095)
    assert not metrics.exchanges.is_full
    metrics.add(FACTS, input_s=0.0, lr=0.1, sent_bytes=0)
    assert metrics.exchanges.is_full
    assert metrics.progress().open_exchange_s == pytest.approx(4096 * 4.0)
