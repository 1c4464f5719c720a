"""A worker that is slowed down sleeps in proportion to its own steps, in its part of the run."""

from __future__ import annotations

import pytest

from phalanx.spec.job import InjectSpec
from phalanx.strategy.base import StepFacts
from phalanx.worker import inject
from phalanx.worker.inject import InjectedSlowdown

SLOW = [
    InjectSpec(rank=1, slow=3.0, begin=0.25, end=0.5),
    InjectSpec(rank=1, slow=2.0, begin=0.4, end=0.75),
    InjectSpec(rank=2, slow=9.0),
]


def step(forward_s: float = 0.006, backward_s: float = 0.004) -> StepFacts:
    return StepFacts(
        num_samples=1, loss_sum=1.0, num_correct=0, forward_s=forward_s, backward_s=backward_s,
        exchange_s=5.0, apply_s=0.0,
    )  # fmt: skip


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What would have been slept."""
    found: list[float] = []
    monkeypatch.setattr(inject.time, "sleep", found.append)
    return found


def test_the_sleep_is_a_multiple_of_the_workers_own_time(naps: list[float]) -> None:
    slowdown = InjectedSlowdown(SLOW, rank=1)
    assert slowdown.wait(0.3) == 0.0  # nothing is known of its steps yet
    slowdown.count(step(), 0.0)
    assert slowdown.wait(0.3) == pytest.approx(2 * 0.010)
    assert naps == [pytest.approx(0.02)]
    # The newest step counts a fifth.
    slowdown.count(step(forward_s=0.056), 0.02)
    assert slowdown.wait(0.3) == pytest.approx(2 * 0.020)


@pytest.mark.parametrize(
    ("progress", "times"),
    [(0.0, 0), (0.2499, 0), (0.25, 2), (0.45, 2), (0.5, 1), (0.7499, 1), (0.75, 0), (1.0, 0)],
)
def test_it_is_slow_from_begin_to_end_and_as_slow_as_the_slowest(
    naps: list[float], progress: float, times: int
) -> None:
    slowdown = InjectedSlowdown(SLOW, rank=1)
    slowdown.count(step(), 0.0)
    assert slowdown.wait(progress) == pytest.approx(times * 0.010)
    assert len(naps) == bool(times)


def test_the_sleep_counts_as_computing(naps: list[float]) -> None:
    facts = InjectedSlowdown(SLOW, rank=2).count(step(), 0.08)
    assert facts.forward_s == pytest.approx(0.086)
    assert (facts.backward_s, facts.exchange_s) == (0.004, 5.0)


def test_others_are_left_alone(naps: list[float]) -> None:
    slowdown = InjectedSlowdown(SLOW, rank=0)
    assert slowdown.count(step(), 0.0) == step()
    assert slowdown.wait(0.3) == 0.0
    assert naps == []
