"""Slots, kernel ranges and buckets as bookkeeping."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.layout import FlatLayout, Range, Slot


def layout(*shapes: tuple[int, ...]) -> FlatLayout:
    slots, start = [], 0
    for index, shape in enumerate(shapes):
        stop = start + torch.Size(shape).numel()
        slots.append(Slot(f"p{index}", shape, start, stop, channels_last=len(shape) == 4))
        start = stop
    return FlatLayout(tuple(slots))


def test_kernels_are_joined_and_cut() -> None:
    net = layout((2, 3), (3, 2), (4,), (5, 2), (1,))
    assert net.kernels() == (Range(0, 12), Range(16, 26))
    assert net.kernels(Range(10, 20)) == (Range(0, 2), Range(6, 10))
    assert net.kernels(Range(12, 16)) == ()


def test_buckets_start_at_the_last_parameter() -> None:
    net = layout((4,), (4,), (1,), (8,), (1,))
    assert net.buckets(16) == (Range(9, 18), Range(4, 9), Range(0, 4))
    assert net.buckets(10**9) == (Range(0, 18),)


def test_automatic_bucket_is_a_quarter_between_bounds() -> None:
    small = layout(*[(1000,)] * 100)
    assert len(small.buckets()) == 1  # 400 kB stay together
    large = layout(*[(1000,)] * 2000)
    assert [len(bucket) for bucket in large.buckets()] == [500_000] * 4


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 400), st.integers(0, 999)
)
def test_buckets_cover_everything_once(sizes: list[int], bucket_bytes: int, at: int) -> None:
    net = layout(*[(size,) for size in sizes])
    buckets = net.buckets(bucket_bytes)
    position = net.size
    for index, bucket in enumerate(buckets):
        assert bucket.stop == position
        assert len(bucket) * 4 >= bucket_bytes or index == len(buckets) - 1
        position = bucket.start
    assert position == 0
    cut = at % (net.size + 1)
    both = net.kernels(Range(0, cut)) + net.kernels(Range(cut, net.size))
    assert sum(map(len, both)) == sum(map(len, net.kernels()))


def test_views_share_memory_in_channels_last_order() -> None:
    net = layout((2, 3, 2, 2), (5,))
    flat = torch.arange(29.0)
    kernel = {slot.name: slot.view(flat) for slot in net.slots}["p0"]
    assert kernel.shape == (2, 3, 2, 2)
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert kernel[0, 1, 0, 0] == 1
    assert kernel[0, 0, 0, 1] == 3
    flat[0] = 100
    assert kernel[0, 0, 0, 0] == 100
