"""The slowest of several workers: textbook values, and what must never turn round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.plan.compute_model import expected_kth, expected_max


@pytest.mark.parametrize(
    ("count", "normal"), [(2, 0.564), (3, 0.846), (4, 1.029), (8, 1.424), (16, 1.766)]
)
def test_little_jitter_is_like_the_normal_distribution(count: int, normal: float) -> None:
    assert expected_max([1.0] * count, [0.05] * count) == pytest.approx(1 + 0.05 * normal, rel=5e-3)


@pytest.mark.parametrize(("count", "k"), [(2, 1), (2, 2), (5, 3), (8, 8), (8, 5)])
def test_exponential_times_have_harmonic_order_statistics(count: int, k: int) -> None:
    harmonic = sum(1 / i for i in range(count - k + 1, count + 1))
    assert expected_kth([2.0] * count, [1.0] * count, k) == pytest.approx(2 * harmonic, rel=0.06)


def test_without_jitter_it_is_the_slowest_mean() -> None:
    assert expected_max([1.0, 3.0, 2.0], [0.0, 0.0, 0.0]) == 3.0
    assert expected_kth([1.0, 3.0, 2.0], [0.0, 0.0, 0.0], 2) == 2.0


def test_a_far_slower_worker_decides_alone() -> None:
    assert expected_max([1.0, 10.0], [0.1, 0.1]) == pytest.approx(10.0, rel=1e-6)


@given(
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8),
    st.floats(0.0, 0.8),
    st.integers(0, 7),
    st.floats(1.0, 3.0),
)
def test_a_slower_worker_never_makes_it_faster(
    means: list[float], jitter: float, which: int, factor: float
) -> None:
    slower = [m * factor if i == which % len(means) else m for i, m in enumerate(means)]
    jitters = [jitter] * len(means)
    for k in range(1, len(means) + 1):
        assert expected_kth(slower, jitters, k) >= expected_kth(means, jitters, k) * (1 - 1e-12)
