"""Mean value analysis against values worked out by hand, and what must hold for any network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.plan.network_model import queue_throughput, residence


def mean_value(demands: list[float], think: float, count: int, done: float = 0.5) -> float:
    """Rounds per second of so many equal workers."""
    return count / (think + residence(demands, think, count, done=done))


def test_one_station_by_hand() -> None:
    # D = 1, Z = 1. n=1: R = 1, X = 1/2, Q = 1/2. n=2: R = 3/2, X = 4/5, Q = 6/5.
    # n=3: R = 11/5, X = 15/16.
    assert mean_value([1.0], 1.0, 1, done=0) == pytest.approx(1 / 2)
    assert mean_value([1.0], 1.0, 2, done=0) == pytest.approx(4 / 5)
    assert mean_value([1.0], 1.0, 3, done=0) == pytest.approx(15 / 16)


def test_equal_times_of_service_by_hand() -> None:
    # D = 1, Z = 2. n=1: R = 1, X = 1/3, Q = 1/3. n=2: R = 1 + 1/3 - 1/6 = 7/6, X = 12/19.
    assert mean_value([1.0], 2.0, 1) == pytest.approx(1 / 3)
    assert mean_value([1.0], 2.0, 2) == pytest.approx(12 / 19)
    # With ten of them the station never rests.
    assert mean_value([1.0], 2.0, 10) == pytest.approx(1.0)


def test_two_stations_by_hand() -> None:
    # D = (1, 2), Z = 0. n=1: R = (1, 2), X = 1/3, Q = (1/3, 2/3).
    # n=2: R = (4/3, 10/3), X = 2 / (14/3) = 3/7.
    assert residence([1.0, 2.0], 0.0, 1, done=0) == pytest.approx(3.0)
    assert mean_value([1.0, 2.0], 0.0, 2, done=0) == pytest.approx(3 / 7)


def test_equal_workers_have_equal_rates() -> None:
    flow = queue_throughput([0.02, 0.01], [0.1] * 6, done=0.5)
    assert flow.total == pytest.approx(mean_value([0.02, 0.01], 0.1, 6))
    assert len(set(flow.rates)) == 1


@given(
    st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=3),
    st.lists(st.floats(1e-3, 2.0), min_size=1, max_size=20),
)
def test_no_station_serves_more_than_it_can(demands: list[float], thinks: list[float]) -> None:
    flow = queue_throughput(demands, thinks, done=0.5)
    assert flow.total <= 1 / max(demands) * (1 + 1e-9)
    # Nobody is faster than alone.
    for rate, think in zip(flow.rates, thinks, strict=True):
        assert rate <= 1 / (think + sum(demands)) * (1 + 1e-9)


@given(st.floats(1e-3, 0.5), st.floats(1e-3, 1.0), st.integers(1, 30))
def test_more_workers_never_do_less(demand: float, think: float, count: int) -> None:
    more, fewer = (mean_value([demand], think, size) for size in (count + 1, count))
    assert more >= fewer * (1 - 1e-12)
