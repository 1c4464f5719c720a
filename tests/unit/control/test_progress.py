from __future__ import annotations

import pytest

from phalanx.control.progress import SpeedMeter, combine
from phalanx.wire.messages import Progress


def test_sums_and_means_are_over_all_workers() -> None:
    workers = [
        Progress(epoch=1, step=7, samples=140, epoch_samples=40, epoch_total=100, loss_sum=80.0,
                 num_correct=10, activity="training", lr=0.1),
        Progress(epoch=1, step=6, samples=110, epoch_samples=10, epoch_total=100, loss_sum=20.0,
                 num_correct=5, activity="training", lr=0.1),
    ]  # fmt: skip
    found = combine(workers, epochs=3, elapsed_s=12.0, rate=25.0)
    assert (found.epoch, found.epochs, found.samples) == (1, 3, 250)
    assert (found.epoch_samples, found.epoch_total, found.epoch_share) == (50, 100, 0.5)
    assert found.loss == pytest.approx(2.0)
    assert found.accuracy == pytest.approx(0.3)
    # One and a half epochs of 100 samples at 25 a second.
    assert found.eta_s == pytest.approx(6.0)
    assert (found.activity, found.lr, found.elapsed_s) == ("training", 0.1, 12.0)


def test_a_worker_that_is_an_epoch_behind_does_not_count_for_this_one() -> None:
    ahead = Progress(epoch=2, epoch_samples=10, epoch_total=100, loss_sum=10.0)
    behind = Progress(epoch=1, epoch_samples=50, epoch_total=100, loss_sum=500.0)
    found = combine([behind, ahead], epochs=3, elapsed_s=1.0, rate=1.0)
    assert found.epoch == 2
    assert found.epoch_samples == 10
    assert found.loss == pytest.approx(1.0)


def test_before_the_first_sample_nothing_is_claimed() -> None:
    found = combine([Progress(), Progress()], epochs=3, elapsed_s=1.0, rate=0.0)
    assert found.loss is None
    assert found.accuracy is None
    assert found.eta_s is None
    assert found.time_shares == {}
    assert found.activity == "starting"


def test_the_share_never_exceeds_one() -> None:
    # With `shard: off` every worker sees the whole data.
    workers = [Progress(epoch_samples=80, epoch_total=100)] * 2
    assert combine(workers, epochs=1, elapsed_s=1.0, rate=1.0).epoch_share == 1.0


def test_waiting_is_what_exceeds_the_quickest_exchange() -> None:
    slow = Progress(compute_s=6.0, apply_s=1.0, exchange_s=1.0, open_exchange_s=1.0)
    fast = Progress(compute_s=3.0, apply_s=1.0, exchange_s=3.0, open_exchange_s=3.0, input_s=1.0)
    shares = combine([slow, fast], epochs=1, elapsed_s=1.0, rate=1.0).time_shares
    assert shares == pytest.approx(
        {"input": 1 / 16, "compute": 11 / 16, "communication": 2 / 16, "waiting": 2 / 16}
    )
    assert sum(shares.values()) == pytest.approx(1.0)


def test_waiting_that_workers_know_of_is_not_compared() -> None:
    often = Progress(compute_s=6.0, exchange_s=3.0, wait_s=1.0)
    seldom = Progress(compute_s=6.0, exchange_s=1.0, wait_s=0.0)
    shares = combine([often, seldom], epochs=1, elapsed_s=1.0, rate=1.0).time_shares
    assert shares == pytest.approx(
        {"input": 0.0, "compute": 12 / 16, "communication": 3 / 16, "waiting": 1 / 16}
    )


def test_the_speed_is_never_negative_when_a_worker_leaves_and_its_successor_counts_from_zero() -> (
    None
):
    meter = SpeedMeter()
    totals = [
        {"worker-0": 0, "worker-1": 0},
        {"worker-0": 100, "worker-1": 100},
        {"worker-0": 200, "worker-1": 0},  # lost, and started again
        {"worker-0": 300, "worker-1": 0},
        {"worker-0": 400},  # lost, and left out
        {"worker-0": 500},
    ]
    rates = [meter.rate(float(second), samples) for second, samples in enumerate(totals)]
    # 600 samples in five seconds; the first second has no rate yet.
    assert rates == [0.0, 200.0, 150.0, pytest.approx(400 / 3), 125.0, 120.0]


def test_the_speed_of_a_successor_counts_at_once() -> None:
    meter = SpeedMeter()
    assert [meter.rate(t, {"worker-0": n}) for t, n in ((0.0, 0), (1.0, 50), (2.0, 10))] == [
        0.0,
        50.0,
        30.0,
    ]
