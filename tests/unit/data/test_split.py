from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.dataset import split_rows


def test_mnist_family():
    split = split_rows(60_000)
    assert (len(split.train), len(split.validation), split.test) == (54_000, 6_000, None)


@given(
    num_samples=st.integers(1, 400),
    validation=st.just("auto") | st.floats(0, 0.99),
    limit=st.none() | st.integers(1, 400),
    test_share=st.none() | st.floats(0.01, 0.5),
)
def test_parts_are_disjoint_sorted_and_complete(num_samples, validation, limit, test_share):
    split = split_rows(num_samples, validation=validation, limit=limit, test_share=test_share)
    test = split.test if split.test is not None else np.empty(0, dtype=np.int64)
    parts = [split.train, split.validation, test]
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    assert len(split.train) > 0
    kept = len(split.train) + len(split.validation)
    assert kept == min(limit or num_samples, num_samples - len(test))
    if limit is None:
        assert np.array_equal(np.sort(rows), np.arange(num_samples))
    if validation == 0.0:
        assert len(split.validation) == 0


def test_the_limit_leaves_the_test_part_alone():
    whole, few = split_rows(1000, test_share=0.2), split_rows(1000, test_share=0.2, limit=50)
    assert np.array_equal(whole.test, few.test)
    assert (len(few.train), len(few.validation)) == (45, 5)


def test_the_split_is_random_but_fixed():
    split = split_rows(1000)
    assert np.array_equal(split.validation, split_rows(1000).validation)
    # Held out all over the rows, which may be sorted by class.
    assert split.validation[0] < 100
    assert split.validation[-1] > 900
