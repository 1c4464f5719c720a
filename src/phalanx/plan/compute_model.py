"""Model the computation of a step: fit it to measured steps, and predict the slowest of several.

Least squares for calibration: computation and memory linear in the batch size. Pure.

Notation: groups g of steps with n_g samples, mean y_g and weight w_g. Wanted: a, c >= 0 that
minimise Σ w_g (y_g - a - c n_g)². A single batch size does not identify both: a tenth is then taken
as fixed.

Order statistics of jittery workers: the slowest, and the k-th.

Notation: worker i takes C_i, gamma distributed with mean m_i and coefficient of variation v_i.
Wanted: E[max C_i] and E[C_(k:N)]. Both are means over a fixed set of stratified draws (common
random numbers): a slower worker never makes the result smaller, which independent draws would not
guarantee, and candidates are compared on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from phalanx.plan.facts import ComputeFit
from phalanx.plan.measured import StepGroup

_FIXED_SHARE = 0.1
# Lower bound of the error: a few runs on a shared machine give no better estimate.
_LEAST_ERROR = 0.03
_ONE_SIZE_ERROR = 0.1


def fit_compute(groups: Sequence[StepGroup]) -> ComputeFit:
    """Fit groups of the same setting: machine, threads, workers, precision."""
    sizes = np.array([group.batch for group in groups], dtype=np.float64)
    times_s = np.array([group.compute_s for group in groups])
    weights = np.array([group.count for group in groups], dtype=np.float64)
    fixed_s, per_sample_s = line(sizes.tolist(), times_s.tolist(), weights.tolist())
    fitted_s = fixed_s + per_sample_s * sizes
    residual = math.sqrt(float(np.average(((times_s - fitted_s) / times_s) ** 2, weights=weights)))
    error = max(_LEAST_ERROR, residual)
    if len(set(sizes)) == 1:
        error = max(error, _ONE_SIZE_ERROR)
    first = groups[0]
    return ComputeFit(
        fixed_s=fixed_s,
        per_sample_s=per_sample_s,
        jitter=_mean([group.jitter for group in groups], weights.tolist()),
        backward_share=_mean([group.backward_share for group in groups], weights.tolist()),
        apply_s=_mean([group.apply_s for group in groups], weights.tolist()),
        threads=first.threads,
        workers=first.workers,
        precision=first.precision,
        error=error,
    )


def line(
    sizes: Sequence[float], values: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Fit intercept and slope, both non-negative, the slope positive if any value is."""
    n, y, w = (np.asarray(one, dtype=np.float64) for one in (sizes, values, weights))
    through_zero = float((w * y * n).sum() / (w * n * n).sum())
    if len(set(sizes)) == 1:
        return _FIXED_SHARE * float(np.average(y, weights=w)), through_zero * (1 - _FIXED_SHARE)
    mean_n, mean_y = np.average(n, weights=w), np.average(y, weights=w)
    slope = float((w * (n - mean_n) * (y - mean_y)).sum() / (w * (n - mean_n) ** 2).sum())
    fixed = float(mean_y - slope * mean_n)
    if fixed < 0:
        return 0.0, through_zero
    if slope <= 0:
        return _FIXED_SHARE * float(mean_y), float(mean_y) * (1 - _FIXED_SHARE) / float(mean_n)
    return fixed, slope


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(np.average(np.asarray(values), weights=np.asarray(weights)))


Floats = npt.NDArray[np.float64]

# With stratified draws the mean of one worker is exact and E[max] is off by less than 0.3 %.
_NUM_DRAWS = 512
_SEED = 20260101
_LEAST_JITTER = 1e-4


def expected_max(means_s: Sequence[float], jitters: Sequence[float]) -> float:
    """Return E[max C_i]."""
    return expected_kth(means_s, jitters, len(means_s))


def expected_kth(means_s: Sequence[float], jitters: Sequence[float], k: int) -> float:
    """Return the expected time at which the k-th worker finishes; k from 1."""
    if len(means_s) == 1 or max(jitters) < _LEAST_JITTER:
        return sorted(means_s)[k - 1]
    times_s = _draws(tuple(round(max(v, _LEAST_JITTER), 3) for v in jitters)) * np.asarray(means_s)
    if k == len(means_s):
        return float(times_s.max(axis=1).mean())
    return float(np.partition(times_s, k - 1, axis=1)[:, k - 1].mean())


@lru_cache(maxsize=256)
def _draws(jitters: tuple[float, ...]) -> Floats:
    """Return draws with mean 1, one column per worker."""
    order = _orders(len(jitters))
    quantiles = {jitter: _quantiles(jitter) for jitter in set(jitters)}
    return np.stack([quantiles[v][order[:, i]] for i, v in enumerate(jitters)], axis=1)


@lru_cache(maxsize=64)
def _quantiles(jitter: float) -> Floats:
    if jitter <= _LEAST_JITTER:
        return np.ones(_NUM_DRAWS)
    shape = 1 / jitter**2
    levels = (np.arange(_NUM_DRAWS) + 0.5) / _NUM_DRAWS
    values = np.asarray(special.gammaincinv(shape, levels), dtype=np.float64)
    return np.asarray(values / values.mean(), dtype=np.float64)


@lru_cache(maxsize=64)
def _orders(num_workers: int) -> npt.NDArray[np.intp]:
    """Return a permutation of the strata per worker; a worker has the same one in every group."""
    return np.stack(
        [np.random.default_rng((_SEED, i)).permutation(_NUM_DRAWS) for i in range(num_workers)],
        axis=1,
    )
