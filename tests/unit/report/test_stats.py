"""Statistics against values computed by hand and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from phalanx.report.stats import (
    adjust_holm,
    contrast,
    contrast_by_seed,
    contrast_pairs,
    estimate,
    flag_outliers,
)

FIRST = [10.0, 12.0, 11.0]
SECOND = [8.0, 9.0, 13.0, 6.0]
samples = st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=8)


def test_estimate_by_hand() -> None:
    found = estimate([2.0, 4.0, 6.0])
    # s = 2, t(0.975, 2) = 4.302653, half = 4.302653 * 2 / sqrt(3)
    assert found.n == 3
    assert found.mean == 4
    assert found.sd == pytest.approx(2)
    assert found.half_width == pytest.approx(4.302652729911275 * 2 / math.sqrt(3))
    assert found.relative_half_width == pytest.approx(4.302652729911275 / math.sqrt(3) / 2)


def test_one_value_has_no_interval() -> None:
    found = estimate([5.0])
    assert (found.n, found.mean) == (1, 5.0)
    assert found.sd is found.low is found.high is found.half_width is None
    assert found.relative_half_width is None


def test_no_values_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no values"):
        estimate([])


@given(samples, st.sampled_from([0.8, 0.95, 0.99]))
def test_estimate_agrees_with_scipy(values: list[float], confidence: float) -> None:
    found = estimate(values, confidence=confidence)
    sd = float(np.std(values, ddof=1))
    low, high = reference.t.interval(
        confidence, len(values) - 1, np.mean(values), sd / math.sqrt(len(values)) or 1e-300
    )
    assert found.sd == pytest.approx(sd, abs=1e-9)
    assert found.low == pytest.approx(low, abs=1e-9)
    assert found.high == pytest.approx(high, abs=1e-9)


def test_welch_agrees_with_scipy() -> None:
    found = contrast(FIRST, SECOND)
    peer = reference.ttest_ind(FIRST, SECOND, equal_var=False)
    interval = peer.confidence_interval(0.95)
    assert found.method == "welch"
    assert found.n == (3, 4)
    assert found.difference == pytest.approx(2)
    assert found.p_value == pytest.approx(peer.pvalue)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.is_significant is False


def test_pairs_agree_with_scipy() -> None:
    second = [9.0, 11.5, 9.8]
    found = contrast_pairs(list(zip(FIRST, second, strict=True)))
    peer = reference.ttest_rel(FIRST, second)
    interval = peer.confidence_interval(0.95)
    assert found.method == "paired"
    assert found.p_value == pytest.approx(peer.pvalue)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)


def test_pairs_by_seed_only_where_all_seeds_match_once() -> None:
    one = {1: [10.0], 2: [12.0]}
    assert contrast_by_seed(one, {2: [11.0], 1: [9.5]}).method == "paired"
    assert contrast_by_seed(one, {1: [9.5], 3: [11.0]}).method == "welch"
    assert contrast_by_seed(one, {1: [9.5, 9.6], 2: [11.0]}).method == "welch"
    assert contrast_by_seed(one, {1: [9.5]}).method == "none"
    # 10 - 9.5 and 12 - 11: paired by seed, not by order.
    assert contrast_by_seed(one, {2: [11.0], 1: [9.5]}).difference == pytest.approx(0.75)


def test_single_runs_are_compared_without_a_test() -> None:
    found = contrast([10.0], [5.0, 6.0])
    assert found.method == "none"
    assert found.difference == pytest.approx(4.5)
    assert found.ratio == pytest.approx(10 / 5.5)
    assert found.p_value is found.low is found.ratio_low is found.is_significant is None


def test_ratio_of_paired_means_by_hand() -> None:
    # m = (10, 5), v11 = 1/3, v22 = 1/12, v12 = -1/12; with t = 4.302653:
    # a = 25 - 1.542735, b = 50 + 1.542735, c = 100 - 6.170941
    found = contrast_pairs([(9.0, 5.0), (10.0, 5.5), (11.0, 4.5)])
    t2 = 4.302652729911275**2
    a, b, c = 25 - t2 / 12, 50 + t2 / 12, 100 - t2 / 3
    assert found.ratio == pytest.approx(2)
    assert found.ratio_low == pytest.approx((b - math.sqrt(b * b - a * c)) / a)
    assert found.ratio_high == pytest.approx((b + math.sqrt(b * b - a * c)) / a)


@given(samples, samples)
def test_bounds_of_the_ratio_are_where_the_test_turns(
    first: list[float], second: list[float]
) -> None:
    found = contrast(first, second)
    if found.ratio_high is None or found.ratio is None or np.std(first) + np.std(second) < 1e-6:
        return
    v1, v2 = np.var(first, ddof=1) / len(first), np.var(second, ddof=1) / len(second)
    w2 = found.ratio**2 * v2
    freedom = (v1 + w2) ** 2 / (v1**2 / (len(first) - 1) + w2**2 / (len(second) - 1))
    for bound in (found.ratio_low, found.ratio_high):
        assert bound is not None
        if bound == 0:
            continue  # cut off: times and speeds have no negative ratio
        distance = abs(np.mean(first) - bound * np.mean(second))
        error = math.sqrt(v1 + bound**2 * v2)
        assert distance / error == pytest.approx(reference.t.ppf(0.975, freedom), rel=1e-4)


def test_ratio_to_something_near_zero_has_no_interval() -> None:
    found = contrast([1.0, 2.0], [-1.0, 1.1])
    assert found.ratio is not None
    assert found.ratio_low is None
    assert contrast([1.0, 2.0], [-1.0, 1.0]).ratio is None


def test_ratio_of_positive_values_is_not_negative() -> None:
    assert contrast([1.0, 9.0], [5.0, 5.1]).ratio_low == 0
    below = contrast([-1.0, 11.0], [5.0, 5.1]).ratio_low
    assert below is not None
    assert below < 0


def test_values_without_spread_leave_nothing_to_chance() -> None:
    assert contrast([2.0, 2.0], [2.0, 2.0]).p_value == 1.0
    assert contrast([2.0, 2.0], [3.0, 3.0]).p_value == 0.0
    assert contrast([4.0, 4.0], [2.0, 2.0]).ratio_low == pytest.approx(2)


def test_holm_by_hand() -> None:
    # Sorted 0.01 * 3, 0.02 * 2, 0.04 * 1, each at least as large as the one before.
    assert adjust_holm([0.04, 0.01, None, 0.02]) == pytest.approx([0.04, 0.03, None, 0.04])
    assert adjust_holm([0.9, 0.8]) == [1.0, 1.0]
    assert adjust_holm([]) == []


def test_outliers_by_hand() -> None:
    # Median 10, MAD 0.1: 10.6 has the score 0.6745 * 0.6 / 0.1 = 4.05, and 10.5 has 3.37.
    assert flag_outliers([9.9, 10.0, 10.1, 9.9, 10.0, 10.6, 10.1]) == [False] * 5 + [True, False]
    assert not any(flag_outliers([9.9, 10.0, 10.1, 9.9, 10.0, 10.5, 10.1]))


def test_outliers_among_few_must_also_be_far() -> None:
    assert flag_outliers([10.0, 10.2, 30.0]) == [False, False, True]
    assert flag_outliers([10.0, 10.01, 10.5]) == [False, False, False]
    assert flag_outliers([1.0, 50.0]) == [False, False]


def test_outlier_where_the_others_are_equal() -> None:
    assert flag_outliers([5.0] * 6 + [9.0]) == [False] * 6 + [True]
    assert flag_outliers([5.0] * 4) == [False] * 4
