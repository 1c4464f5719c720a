"""Slices cover a tensor once, and sums are a plain loop over ranks, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm.slices import byte_view, flat, fold, slice_bounds


@given(st.integers(0, 5000), st.integers(1, 40))
def test_slices_cover_everything_once(num_elements: int, size: int) -> None:
    bounds = slice_bounds(num_elements, size)
    assert len(bounds) == size
    covered = [index for begin, end in bounds for index in range(begin, end)]
    assert covered == list(range(num_elements))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("own", [0, 1, 2, 3])
def test_a_sum_is_a_left_fold_in_rank_order(dtype: torch.dtype, own: int) -> None:
    source = torch.Generator().manual_seed(3)
    parts = [(torch.randn(40_000, generator=source) * 100).to(dtype) for _ in range(4)]
    expected = parts[0].clone()
    for part in parts[1:]:
        expected = expected + part
    fold(parts[own], parts, "sum")
    assert torch.equal(parts[own], expected)


def test_one_part_is_copied_and_none_is_zero() -> None:
    target = torch.ones(5)
    fold(target, [torch.full((5,), 3.0)], "sum")
    assert target.tolist() == [3.0] * 5
    fold(target, [], "sum")
    assert target.tolist() == [0.0] * 5


def test_bytes_of_a_row_are_its_memory() -> None:
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    byte_view(flat(tensor))[:] = b"\x80\x3f" * 6
    assert tensor.tolist() == [[1.0] * 3] * 2
    with pytest.raises(ValueError, match="contiguous"):
        flat(torch.zeros(4, 4).t())
