from __future__ import annotations

from phalanx.strategy.base import StepFacts
from phalanx.worker.metrics import WorkerMetrics

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
    assert metrics.exchanges == [4.0, 4.0]


def test_a_new_epoch_starts_its_own_sums_at_zero_and_keeps_the_others() -> None:
    metrics = counted(3)
    metrics.begin_epoch(1, total=100, resumed=False)
    progress = metrics.progress()
    assert (progress.epoch, progress.epoch_samples, progress.loss_sum) == (1, 0, 0.0)
    assert progress.num_correct == 0
    assert metrics.exchanges == []
    assert (progress.samples, progress.step) == (30, 3)


def test_a_resumed_epoch_goes_on_with_its_sums() -> None:
    metrics = WorkerMetrics(epoch_samples=50, epoch_loss_sum=100.0, epoch_correct=20)
    metrics.begin_epoch(4, total=100, resumed=True)
    metrics.add(FACTS, input_s=0.0, lr=0.1, sent_bytes=0)
    progress = metrics.progress()
    assert (progress.epoch, progress.epoch_samples) == (4, 60)
    assert (progress.loss_sum, progress.num_correct) == (120.0, 23)
