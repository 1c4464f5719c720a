"""Cutting a batch over unequal machines: never worse than any other cut."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.plan.facts import ComputeFit
from phalanx.plan.placement import equal_split, split_batch

fits = st.builds(
    ComputeFit,
    fixed_s=st.floats(0.0, 0.5),
    per_sample_s=st.floats(1e-3, 0.2),
)


def slowest(sizes: tuple[int, ...], machines: list[ComputeFit]) -> float:
    # An idle machine still has its fixed part only if it has a sample.
    return max(fit.seconds(n) for fit, n in zip(machines, sizes, strict=True))


@given(st.lists(fits, min_size=1, max_size=3), st.integers(1, 12))
def test_no_cut_is_faster(machines: list[ComputeFit], batch: int) -> None:
    sizes = split_batch(batch, machines)
    assert sum(sizes) == batch
    assert min(sizes) >= 0
    cuts = (c for c in product(range(batch + 1), repeat=len(machines)) if sum(c) == batch)
    best = min(slowest(cut, machines) for cut in cuts)
    assert slowest(sizes, machines) <= best * (1 + 1e-9)


@given(st.lists(fits, min_size=1, max_size=40), st.integers(1, 5000))
def test_large_batches_are_cut_completely(machines: list[ComputeFit], batch: int) -> None:
    sizes = split_batch(batch, machines)
    assert sum(sizes) == batch
    # Moving one sample from the slowest to anybody else does not help.
    busy = max(range(len(sizes)), key=lambda i: machines[i].seconds(sizes[i]))
    for i, fit in enumerate(machines):
        if i != busy:
            assert fit.seconds(sizes[i] + 1) >= machines[busy].seconds(sizes[busy]) * (1 - 1e-9)


def test_twice_as_fast_gets_twice_as_much() -> None:
    machines = [ComputeFit(fixed_s=0.0, per_sample_s=c) for c in (1e-3, 2e-3)]
    assert split_batch(300, machines) == (200, 100)


@pytest.mark.parametrize(("batch", "workers", "sizes"), [(7, 3, (3, 2, 2)), (4, 2, (2, 2))])
def test_equal_split(batch: int, workers: int, sizes: tuple[int, ...]) -> None:
    assert equal_split(batch, workers) == sizes
