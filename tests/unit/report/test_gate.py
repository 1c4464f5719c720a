from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from phalanx.records.study import PlannedCell, PlannedGate, PlannedRepeats, StudyManifest
from phalanx.report.gate import judge_equivalence, judge_study

values = st.floats(0.5, 1.0)


def by_seed(*numbers: float) -> dict[int, float]:
    return dict(enumerate(numbers, start=1))


def test_pairs_that_hardly_differ_are_equivalent() -> None:
    found = judge_equivalence(
        by_seed(0.981, 0.979, 0.980), by_seed(0.980, 0.980, 0.980), tolerance=0.01
    )
    # Differences +0.001, -0.001, 0: mean 0, deviation 0.001, t(0.95, 2) = 2.919986;
    # 2.919986 * 0.001 / sqrt(3) = 0.00168585.
    assert (found.verdict, found.paired, found.num_runs) == ("equivalent", True, (3, 3))
    assert found.difference == pytest.approx(0, abs=1e-12)
    assert found.high == pytest.approx(0.00168585, abs=1e-7)
    assert found.low == pytest.approx(-0.00168585, abs=1e-7)
    assert found.level == pytest.approx(0.90)
    assert found.is_open


def test_a_clear_difference_is_different() -> None:
    found = judge_equivalence(by_seed(0.90, 0.91, 0.90), by_seed(0.98, 0.98, 0.98), tolerance=0.01)
    assert found.verdict == "different"
    assert found.difference is not None
    assert found.difference < 0


def test_few_or_noisy_runs_leave_it_open() -> None:
    assert judge_equivalence(by_seed(0.98), by_seed(0.98), tolerance=0.01).verdict == "undecided"
    noisy = judge_equivalence(by_seed(0.90, 0.99), by_seed(0.95, 0.95), tolerance=0.01)
    assert noisy.verdict == "undecided"
    nothing = judge_equivalence({}, by_seed(0.95), tolerance=0.01)
    assert (nothing.verdict, nothing.difference) == ("undecided", None)


def test_a_large_difference_within_the_noise_is_not_called_equal() -> None:
    found = judge_equivalence(by_seed(0.90, 0.95), by_seed(0.91, 0.96), tolerance=0.005)
    assert found.verdict == "different"
    assert found.low == pytest.approx(found.high)


def test_other_seeds_are_compared_without_pairing() -> None:
    found = judge_equivalence({1: 0.98, 2: 0.98}, {1: 0.98, 3: 0.981, 4: 0.98}, tolerance=0.01)
    assert not found.paired
    assert found.verdict == "equivalent"


def test_the_tolerance_is_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0"):
        judge_equivalence(by_seed(1), by_seed(1), tolerance=0)


@given(
    st.lists(st.tuples(values, values), min_size=2, max_size=8),
    st.floats(0.001, 0.3),
    st.sampled_from([0.9, 0.95, 0.99]),
)
def test_the_verdict_is_that_of_two_one_sided_tests(
    pairs: list[tuple[float, float]], tolerance: float, confidence: float
) -> None:
    first, second = np.array(pairs).T
    differences = first - second
    assume(np.std(differences) > 1e-6)
    above = stats.ttest_1samp(differences, -tolerance, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, tolerance, alternative="less").pvalue
    alpha = 1 - confidence
    assume(abs(max(above, below) - alpha) > 1e-6)
    found = judge_equivalence(
        by_seed(*first), by_seed(*second), tolerance=tolerance, confidence=confidence
    )
    assert (found.verdict == "equivalent") == (max(above, below) < alpha)
    swapped = judge_equivalence(
        by_seed(*second), by_seed(*first), tolerance=tolerance, confidence=confidence
    )
    assert swapped.verdict == found.verdict
    assert swapped.difference == pytest.approx(-(found.difference or 0), abs=1e-9)


def test_a_study_holds_each_cell_against_the_one_that_differs_in_the_axis() -> None:
    settings = [{"s": s, "b": b} for s in ("PS", "MW") for b in ("1", "2")]
    manifest = StudyManifest(
        name="s",
        title="s",
        axes={"s": ["PS", "MW"], "b": ["1", "2"]},
        cells=[PlannedCell(id=f"{one['s']}_{one['b']}", settings=one) for one in settings],
        metric="train_s",
        repeats=PlannedRepeats(min=2, max=2),
        seeds=[1, 2],
        gate=PlannedGate(metric="test_accuracy", tolerance=0.01, axis="s", baseline="MW"),
    )
    equal, other = by_seed(0.9, 0.9), by_seed(0.5, 0.5)
    results = judge_study(manifest, {"PS_1": equal, "MW_1": equal, "PS_2": other, "MW_2": equal})
    assert [(one.cell, one.baseline, one.verdict) for one in results] == [
        ("PS_1", "MW_1", "equivalent"),
        ("PS_2", "MW_2", "different"),
    ]
