"""Statistics of a window: all workers stop at the same step, and the noise comes out as planted."""

from __future__ import annotations

import queue
import statistics
from collections.abc import Sequence

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.comm.solo import SoloCollective
from phalanx.records.position import Position
from phalanx.strategy.allreduce import GradNoiseGauge
from phalanx.strategy.base import StepFacts
from phalanx.wire.switch import EndPhase, WindowReport
from phalanx.worker.switch.window_stats import WindowStats
from support.ranks import run_ranks

SIZE = 4000


class Channel:
    """The chief's line to the controller."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.said: list[WindowReport] = []

    def send(self, message: WindowReport) -> None:
        self.said.append(message)


def step(num_samples: int = 8, loss: float = 0.5, compute_s: float = 0.1) -> StepFacts:
    return StepFacts(
        num_samples=num_samples, loss_sum=loss * num_samples, num_correct=0, forward_s=compute_s,
        backward_s=compute_s, exchange_s=0.05, apply_s=0.01,
    )  # fmt: skip


def window_stats(
    channel: Channel, group: Collective, gauge: GradNoiseGauge | None = None
) -> WindowStats:
    return WindowStats(channel, group, every=3, gauge=gauge)  # type: ignore[arg-type]


def test_all_workers_turn_at_the_window_after_the_chief_was_told() -> None:
    def body(group: Collective) -> tuple[list[bool], list[WindowReport], bool]:
        channel = Channel()
        stats = window_stats(channel, group)
        turned = []
        for number in range(9):
            if number == 4 and group.rank == 0:
                channel.inbox.put(EndPhase(stay=True))
            facts = step(num_samples=8 + group.rank, compute_s=0.1 * (1 + group.rank))
            turned.append(stats.observe(facts, Position(samples=25 * number), lr=0.1))
        return turned, channel.said, stats.same_strategy

    results = run_ranks(3, body)
    for turned, _, stays in results:
        assert turned == [False] * 5 + [True, False, False, True]
        assert stays
    assert [len(said) for _, said, _ in results] == [3, 0, 0]
    window = results[0][1][0]
    assert window.num_samples == (24, 27, 30)
    assert window.compute_s == pytest.approx((0.6, 1.2, 1.8))
    assert window.exchange_s == pytest.approx((0.15, 0.15, 0.15))
    assert (window.samples, window.lr, window.loss) == (50, 0.1, pytest.approx(0.5))


def measured(
    sizes: Sequence[int], *, variance: float, signal: float, rounds: int
) -> list[WindowReport]:
    """Windows of workers whose samples' gradients have a known mean and variance."""

    def body(group: Collective) -> list[WindowReport]:
        channel, gauge = Channel(), GradNoiseGauge()
        stats = window_stats(channel, group, gauge)
        generator = torch.Generator().manual_seed(group.rank)
        truth = torch.full((SIZE,), (signal / SIZE) ** 0.5)
        count, total = sizes[group.rank], sum(sizes)
        for number in range(3 * rounds):
            # The mean over the worker's samples, weighted by its share of the batch.
            spread = (variance / SIZE / max(1, count)) ** 0.5
            own = truth + spread * torch.randn(SIZE, generator=generator)
            own *= count / total
            for part in own.chunk(4):
                gauge.read_own(part)
            group.all_reduce(own)
            gauge.read_sum(own, num_samples=count, global_count=total)
            stats.observe(step(num_samples=count), Position(samples=number), lr=0.1)
        return channel.said

    return run_ranks(len(sizes), body)[0]


@pytest.mark.parametrize("sizes", [(16, 16), (8, 24), (4, 12, 0, 32)])
def test_noise_and_signal_are_recovered_for_any_shares(sizes: Sequence[int]) -> None:
    windows = measured(sizes, variance=64.0, signal=2.0, rounds=60)
    assert len(windows) == 60
    assert statistics.fmean(one.noise for one in windows) == pytest.approx(64.0, rel=0.05)
    assert statistics.fmean(one.signal for one in windows) == pytest.approx(2.0, rel=0.1)


def test_one_worker_alone_knows_no_noise() -> None:
    channel = Channel()
    gauge = GradNoiseGauge()
    stats = window_stats(channel, SoloCollective(), gauge)
    for _ in range(3):
        gradient = torch.ones(5)
        gauge.read_own(gradient)
        gauge.read_sum(gradient, num_samples=8, global_count=8)
        stats.observe(step(), Position(), lr=0.1)
    assert (channel.said[0].noise, channel.said[0].signal) == (0.0, 0.0)
