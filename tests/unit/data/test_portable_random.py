"""Draws and functions that do not depend on the machine: right, and pinned bit by bit."""

import hashlib
import math

import numpy as np
import numpy.typing as npt
import pytest

from phalanx.data.portable_random import (
    Draws,
    dirichlet,
    exp,
    interpolate,
    log,
    normal_cdf,
    power_of_ten,
    sum_rows,
)


def digest(values: npt.NDArray[np.float64]) -> str:
    return hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()[:16]


def test_exp_and_log_are_right_to_the_last_places() -> None:
    x = np.linspace(-40, 40, 4001)
    assert np.allclose(exp(x), [math.exp(value) for value in x], rtol=4e-16, atol=0)
    assert np.allclose(log(exp(x)), x, rtol=0, atol=1e-14)
    assert power_of_ten([0.0, 1.0, -2.0]) == pytest.approx([1, 10, 0.01], rel=1e-14)
    assert exp([-2000.0, 2000.0]).tolist() == [0.0, math.inf]


def test_the_normal_curve_is_right() -> None:
    x = np.linspace(-5, 5, 1001)
    expected = [0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x]
    assert np.allclose(normal_cdf(x), expected, atol=2e-7)


def test_draws_have_the_promised_laws() -> None:
    draws = Draws(3, 1)
    normal = draws.normal(400, 500)
    assert abs(normal.mean()) < 0.01
    assert normal.std() == pytest.approx(1, abs=0.01)
    assert np.mean(np.abs(normal) < 1) == pytest.approx(0.6827, abs=0.005)
    uniform = draws.uniform(100_000)
    assert 0 < uniform.min() < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.005)
    assert draws.exponential(100_000).mean() == pytest.approx(1, abs=0.02)
    assert np.bincount(draws.whole(5, 50_000)) == pytest.approx([10_000] * 5, rel=0.05)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 3.0])
def test_dirichlet_has_the_mean_and_variance_of_its_law(concentration: float) -> None:
    drawn = np.array([dirichlet([concentration] * 4, Draws(5, i)) for i in range(1500)])
    assert drawn.sum(axis=1) == pytest.approx(np.ones(1500))
    assert drawn.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.04)
    variance = 0.25 * 0.75 / (4 * concentration + 1)
    assert drawn.var(axis=0) == pytest.approx([variance] * 4, rel=0.2)


def test_lines_between_points_and_sums_of_rows() -> None:
    at = np.array([-1.0, 0.0, 0.5, 2.0, 9.0])
    places, heights = np.array([0.0, 1.0, 3.0]), np.array([1.0, 3.0, 7.0])
    assert interpolate(at, places, heights).tolist() == [1.0, 1.0, 2.0, 5.0, 7.0]
    assert sum_rows(np.arange(6.0).reshape(2, 3)).tolist() == [3.0, 12.0]


def test_everything_is_pinned_bit_by_bit() -> None:
    """These must hold on every machine; if one fails, shards and data differ between machines."""
    draws = Draws(1, 2)
    assert digest(draws.normal(1000)) == "7e3fa34e3185e39c"
    assert digest(draws.uniform(1000)) == "bf2337c00c3335e5"
    assert digest(exp(np.linspace(-5, 5, 1000))) == "4e02d8d0c455b5aa"
    assert digest(log(np.linspace(0.1, 5, 1000))) == "c390b943001ee3aa"
    assert digest(normal_cdf(np.linspace(-5, 5, 1000))) == "d2ef8d3dfecae263"
    assert digest(dirichlet([0.1] * 5, Draws(9))) == "80699d724c49e5a1"
