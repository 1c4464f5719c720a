"""Least squares for calibration: computation linear in the batch, and memory likewise. Pure.

Notation: groups g of steps with n_g samples, mean y_g and weight w_g. Wanted: a, c >= 0 with
Σ w_g (y_g - a - c n_g)² least. One batch size alone cannot tell the two apart: a tenth is then
taken as fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from phalanx.plan.facts import ComputeFit
from phalanx.plan.measured import StepGroup

_FIXED_SHARE = 0.1
# Nothing is known better than this from a few runs on a machine that also does other things.
_LEAST_ERROR = 0.03
_ONE_SIZE_ERROR = 0.1


def fit_compute(groups: Sequence[StepGroup]) -> ComputeFit:
    """One fit for groups of the same setting: machine, threads, workers, precision."""
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
    """Fixed part and slope, both not negative, the slope above zero if any value is."""
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
