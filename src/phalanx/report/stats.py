"""Compute statistics of repeated runs: means, intervals, differences, ratios, outliers; pure.

Nothing is guessed from a single run: one value has no deviation, no interval and no test. Used by
the report, by the equivalence gate and by studies that repeat until an interval is narrow enough.
Notation: n values x with mean m and sample deviation s; t(q, v) is the q-quantile of Student's
distribution with v degrees of freedom.

- Interval of a mean: m ± t(1-a/2, n-1) s/√n.
- Difference: paired by seed, (d1..dn) as one sample, or Welch's test with the degrees of freedom of
  Welch (1947) and Satterthwaite (1946).
- Ratio of means r = m1/m2: Fieller (1954), J. R. Stat. Soc. B 16:175-185; the set of all r that
  |m1 - r m2| ≤ t √(v11 - 2 r v12 + r² v22) does not reject. It is the ratio of the means that
  are printed (a t interval of logarithms would be that of geometric means). For unequal variances
  the degrees of freedom are Satterthwaite's at the estimated r, after Tamhane and Logan (2004),
  J. Biopharm. Stat. 14:843-856.
- Outliers: modified z-score 0.6745 |x - median| / MAD above 3.5, Iglewicz and Hoaglin (1993).
- Several tests at once: Holm (1979), Scand. J. Stat. 6:65-70.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, variance
from typing import Literal

import msgspec
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
OUTLIER_SCORE = 3.5
# With three or four values the score alone raises a false alarm in every fourth set, because two
# of them happen to lie close together; there the relative distance must be large as well.
_FEW = 5
_FEW_DISTANCE = 0.10

Method = Literal["paired", "welch", "none"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of repeated measurements, with its deviation and interval."""

    n: int
    mean: float
    sd: float | None
    """Sample deviation; None for one value."""
    low: float | None
    high: float | None
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float | None:
        """Half the interval's width, in the unit of the values."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval's width as a share of the mean; None where there is none."""
        half = self.half_width
        return None if half is None or self.mean == 0 else half / abs(self.mean)


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """Two sets of runs against each other: first minus second, and first over second."""

    method: Method
    """paired: by seed; welch: independent; none: one side has a single run."""
    n: tuple[int, int]
    """Runs of each side; under `paired` the pairs, twice."""
    difference: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    ratio: float | None
    """None if the second mean is zero."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    confidence: float = CONFIDENCE

    @property
    def is_significant(self) -> bool | None:
        """Whether zero difference is rejected at the confidence; None without a test."""
        return None if self.p_value is None else self.p_value < 1 - self.confidence


def estimate(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Compute mean, sample deviation and t interval of at least one value."""
    if not values:
        raise ValueError("there is no mean of no values")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(n=1, mean=mean, sd=None, low=None, high=None, confidence=confidence)
    sd = math.sqrt(variance(values))
    half = _quantile(confidence, len(values) - 1) * sd / math.sqrt(len(values))
    return Estimate(
        n=len(values), mean=mean, sd=sd, low=mean - half, high=mean + half, confidence=confidence
    )


def contrast_by_seed(
    first: Mapping[int, Sequence[float]],
    second: Mapping[int, Sequence[float]],
    *,
    confidence: float = CONFIDENCE,
) -> Contrast:
    """Compare values by seed: paired if both sides have the same seeds once each, else Welch."""
    seeds = sorted(first)
    once = all(len(side[seed]) == 1 for side in (first, second) for seed in side)
    if once and len(seeds) > 1 and seeds == sorted(second):
        pairs = [(first[seed][0], second[seed][0]) for seed in seeds]
        return contrast_pairs(pairs, confidence=confidence)
    return contrast(
        [value for seed in seeds for value in first[seed]],
        [value for seed in sorted(second) for value in second[seed]],
        confidence=confidence,
    )


def contrast(
    first: Sequence[float], second: Sequence[float], *, confidence: float = CONFIDENCE
) -> Contrast:
    """Compare independent values by Welch's test; without a test where one side has one value."""
    n1, n2 = len(first), len(second)
    m1, m2 = fmean(first), fmean(second)
    if n1 < 2 or n2 < 2:
        return _untested(n1, n2, m1, m2, confidence)
    v1, v2 = variance(first) / n1, variance(second) / n2
    freedom = _satterthwaite(v1, n1, v2, n2)
    ratio = m1 / m2 if m2 else None
    scale = 1.0 if ratio is None else ratio**2
    return _tested(
        "welch",
        (n1, n2),
        means=(m1, m2),
        covariance=(v1, 0.0, v2),
        freedom=(freedom, _satterthwaite(v1, n1, scale * v2, n2)),
        positive=min(*first, *second) > 0,
        confidence=confidence,
    )


def contrast_pairs(
    pairs: Sequence[tuple[float, float]], *, confidence: float = CONFIDENCE
) -> Contrast:
    """Compare paired values, such as runs with the same seed."""
    n = len(pairs)
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    m1, m2 = fmean(first), fmean(second)
    if n < 2:
        return _untested(n, n, m1, m2, confidence)
    v12 = sum((a - m1) * (b - m2) for a, b in pairs) / (n - 1) / n
    return _tested(
        "paired",
        (n, n),
        means=(m1, m2),
        covariance=(variance(first) / n, v12, variance(second) / n),
        freedom=(n - 1, n - 1),
        positive=min(*first, *second) > 0,
        confidence=confidence,
    )


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values of tests made together for their number; None stays None."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, index) in enumerate(order):
        worst = max(worst, min(1.0, p * (len(order) - rank)))
        adjusted[index] = worst
    return adjusted


def flag_outliers(values: Sequence[float]) -> list[bool]:
    """Flag values that are outliers; callers report them and still count them."""
    if len(values) < 3:
        return [False] * len(values)
    centre = median(values)
    distances = [abs(value - centre) for value in values]
    # 1.2533 mean deviations are one normal deviation; needed where half of all values are equal.
    unit = median(distances) / 0.6745 or 1.2533 * fmean(distances)
    least = _FEW_DISTANCE * abs(centre) if len(values) < _FEW else 0.0
    return [
        distance >= least and distance > OUTLIER_SCORE * unit and distance > 0
        for distance in distances
    ]


def _untested(n1: int, n2: int, m1: float, m2: float, confidence: float) -> Contrast:
    ratio = m1 / m2 if m2 else None
    return Contrast(
        method="none", n=(n1, n2), difference=m1 - m2, ratio=ratio, confidence=confidence
    )


def _tested(
    method: Method,
    n: tuple[int, int],
    *,
    means: tuple[float, float],
    covariance: tuple[float, float, float],
    freedom: tuple[float, float],
    positive: bool,
    confidence: float,
) -> Contrast:
    """Make a contrast from means, their (co)variances, and two degrees of freedom.

    Positive values have a positive ratio: an interval that reaches below zero is cut there.
    """
    m1, m2 = means
    v11, v12, v22 = covariance
    difference = m1 - m2
    error = math.sqrt(max(0.0, v11 - 2 * v12 + v22))
    half = _quantile(confidence, freedom[0]) * error
    if error > 0:
        p_value = float(2 * stdtr(freedom[0], -abs(difference) / error))
    else:
        # Values without variance: equal or not, there is no chance involved.
        p_value = 1.0 if difference == 0 else 0.0
    bounds = _fieller(means, covariance, _quantile(confidence, freedom[1]))
    return Contrast(
        method=method,
        n=n,
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=p_value,
        ratio=m1 / m2 if m2 else None,
        ratio_low=max(0.0 if positive else -math.inf, bounds[0]) if bounds else None,
        ratio_high=bounds[1] if bounds else None,
        confidence=confidence,
    )


def _fieller(
    means: tuple[float, float], covariance: tuple[float, float, float], quantile: float
) -> tuple[float, float] | None:
    """Solve (m2² - t² v22) r² - 2 (m1 m2 - t² v12) r + (m1² - t² v11) = 0 for r.

    None if the second mean is not distinguishable from zero: the interval is then unbounded.
    """
    m1, m2 = means
    v11, v12, v22 = covariance
    a = m2**2 - quantile**2 * v22
    b = m1 * m2 - quantile**2 * v12
    c = m1**2 - quantile**2 * v11
    if a <= 0:
        return None
    root = math.sqrt(max(0.0, b**2 - a * c))
    return (b - root) / a, (b + root) / a


def _satterthwaite(v1: float, n1: int, v2: float, n2: int) -> float:
    if v1 + v2 == 0:
        return float(n1 + n2 - 2)
    return (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1))


def _quantile(confidence: float, freedom: float) -> float:
    return float(stdtrit(freedom, (1 + confidence) / 2))
