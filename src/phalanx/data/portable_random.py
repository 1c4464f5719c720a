"""Compute numbers that are bit by bit the same on every machine: draws, exp, log, normal curve.

IEEE 754 fixes the results of +, -, *, / and the square root, and numpy promises the raw output of
its Philox generator. Nothing else is used here: library functions such as exp differ in the last
bit between processors, and numpy may change how it draws from distributions. Generators of
data, and partitions of samples by chance, build on this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first has so few digits that its product with a small integer is exact.
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_TERMS = 14  # of the exponential series; for |r| < 0.35 what is left out is below 1e-18
_TABLE_STEPS = 512  # per unit of the normal curve; straight lines between them are right to 3e-7
_TABLE_END = 6


class Draws:
    """A stream of random numbers that depends on nothing but its key."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence(list(key)))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Draw words of 64 random bits."""
        return self._bits.random_raw(count)

    def uniform(self, *shape: int) -> Floats:
        """Draw uniformly from 0 to 1, both excluded."""
        words = self.words(prod(shape)).reshape(shape)
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def whole(self, below: int, *shape: int) -> npt.NDArray[np.int64]:
        """Draw whole numbers from 0 to `below` - 1, uniform up to below / 2^52."""
        return (self.uniform(*shape) * below).astype(np.int64)

    def normal(self, *shape: int) -> Floats:
        """Draw from the normal distribution, in 65,536 steps of equal probability up to 4.3."""
        count = prod(shape)
        words = self.words(-(-count // 4)).astype("<u8")
        drawn: Floats = _quantiles()[words.view("<u2")[:count]].reshape(shape)
        return drawn

    def exponential(self, *shape: int) -> Floats:
        """Draw from the exponential distribution of mean 1."""
        return -log(self.uniform(*shape))


def exp(values: npt.ArrayLike) -> Floats:
    """Compute e to the power of each value, right to a few units in the last place."""
    x = np.asarray(values, dtype=np.float64)
    powers = np.rint(x * _LOG2_E)
    rest = x - powers * _LN2_HIGH
    rest -= powers * _LN2_LOW
    series = np.ones_like(x)
    for term in range(_TERMS, 0, -1):
        series *= rest * (1.0 / term)
        series += 1.0
    # Beyond these the result is 0 or infinite anyway.
    with np.errstate(over="ignore", under="ignore"):
        result: Floats = np.ldexp(series, np.clip(powers, -1100, 1100).astype(np.int32))
    return result


def log(values: npt.ArrayLike) -> Floats:
    """Compute the natural logarithm of positive values: Halley's iteration on `exp`."""
    x = np.asarray(values, dtype=np.float64)
    mantissa, exponent = np.frexp(x)
    # Within 0.03 of the logarithm of the mantissa; each round cubes the error.
    guess = (mantissa - 0.7071067811865476) * (1.9 - 0.7 * mantissa) - 0.34657359027997264
    for _ in range(3):
        raised = exp(guess)
        guess = guess + 2.0 * (mantissa - raised) / (mantissa + raised)
    result: Floats = guess + exponent * (_LN2_HIGH + _LN2_LOW)
    return result


def power_of_ten(values: npt.ArrayLike) -> Floats:
    """Compute 10 to the power of each value."""
    return exp(np.asarray(values, dtype=np.float64) * 2.302585092994046)


def normal_cdf(values: npt.ArrayLike) -> Floats:
    """Compute the normal distribution function of each value."""
    place = (np.clip(values, -_TABLE_END, _TABLE_END) + _TABLE_END) * _TABLE_STEPS
    table = _cdf_table()
    index = np.minimum(place.astype(np.int64), len(table) - 2)
    low = table[index]
    result: Floats = low + (place - index) * (table[index + 1] - low)
    return result


def interpolate(at: Floats, places: Floats, heights: Floats) -> Floats:
    """Interpolate linearly between points (places, heights), which rise; flat beyond the ends."""
    clipped = np.clip(at, places[0], places[-1])
    index = np.clip(np.searchsorted(places, clipped, side="right") - 1, 0, len(places) - 2)
    low, step = places[index], places[index + 1] - places[index]
    result: Floats = heights[index] + (clipped - low) / step * (heights[index + 1] - heights[index])
    return result


def sum_rows(values: Floats) -> Floats:
    """Sum over the last axis, in an order that does not depend on the processor."""
    # Sums along the first axis add whole rows to each other, one by one.
    total: Floats = np.add.reduce(np.ascontiguousarray(np.moveaxis(values, -1, 0)), axis=0)
    return total


def dirichlet(concentrations: Sequence[float], draws: Draws) -> Floats:
    """Draw shares that add up to 1 from a Dirichlet distribution."""
    logs = np.array([_log_gamma_draw(a, draws) for a in concentrations])
    shares = exp(logs - logs.max())
    result: Floats = shares / np.cumsum(shares)[-1]
    return result


def _log_gamma_draw(shape: float, draws: Draws) -> float:
    """Draw the logarithm of a gamma variable, after Marsaglia and Tsang (2000).

    A shape below 1 is raised by one and the result multiplied by u^(1/shape); logarithms keep small
    shapes from underflowing.
    """
    boost = 0.0
    if shape < 1:
        boost = float(log(draws.uniform(1))[0]) / shape
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / float(np.sqrt(9.0 * d))
    while True:
        x = float(draws.normal(1)[0])
        u = draws.uniform(1)
        v = 1.0 + c * x
        if v <= 0:
            continue
        v = v * v * v
        if float(log(u)[0]) < 0.5 * x * x + d - d * v + d * float(log([v])[0]):
            return float(log([d * v])[0]) + boost


@cache
def _cdf_table() -> Floats:
    """Compute the normal distribution at equal steps, by Simpson's rule from the left end."""
    half = 1.0 / (2 * _TABLE_STEPS)
    places = np.arange(-_TABLE_END * 2 * _TABLE_STEPS, _TABLE_END * 2 * _TABLE_STEPS + 1) * half
    curve = exp(-0.5 * places * places) * 0.3989422804014327
    pieces = (curve[:-2:2] + 4.0 * curve[1:-1:2] + curve[2::2]) * (half / 3.0)
    return np.concatenate([[0.0], np.cumsum(pieces)])


@cache
def _quantiles() -> Floats:
    """Compute the values below which (i + 1/2) / 65,536 of the normal curve lies."""
    table = _cdf_table()
    places = np.arange(len(table)) / _TABLE_STEPS - _TABLE_END
    shares = (np.arange(2**15) + 0.5) / 2**16
    half = interpolate(shares, table, places)
    # The lower half mirrored, so that the mean is exactly zero.
    return np.concatenate([half, -half[::-1]])
