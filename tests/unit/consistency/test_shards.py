from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.consistency.shards import MAX_SEGMENT_BYTES, PARAMETER_BYTES, plan_shards

sizes = st.integers(1, 60_000_000)
servers = st.integers(1, 16)


@given(sizes, servers, st.integers(1, 4 << 20), st.none() | st.integers(1, 8))
@example(size=1, num_servers=2, min_shard_bytes=1, max_shards=None)
def test_segments_cover_the_buffer_exactly_and_shards_are_even(
    size: int, num_servers: int, min_shard_bytes: int, max_shards: int | None
) -> None:
    layout = plan_shards(
        size,
        num_servers=num_servers,
        min_shard_bytes=min_shard_bytes,
        max_shards=max_shards,
    )
    assert layout.segments[0].start == 0
    assert layout.num_parameters == size
    for before, after in zip(layout.segments, layout.segments[1:], strict=False):
        assert before.stop == after.start
        assert before.server <= after.server
    assert [segment.index for segment in layout.segments] == list(range(len(layout.segments)))
    assert all(0 < s.size * PARAMETER_BYTES <= MAX_SEGMENT_BYTES for s in layout.segments)
    bounds = [layout.bounds(server) for server in range(layout.num_servers)]
    shard_sizes = [stop - start for start, stop in bounds]
    assert sum(shard_sizes) == size
    assert max(shard_sizes) - min(shard_sizes) <= 1
    assert layout.num_servers <= min(num_servers, max_shards or num_servers)
    if layout.num_servers > 1:
        assert min(shard_sizes) * PARAMETER_BYTES >= min_shard_bytes - PARAMETER_BYTES


@given(st.integers(1, 3_000_000), servers, st.data())
def test_covering_finds_the_segments_of_a_slice(
    size: int, num_servers: int, data: st.DataObject
) -> None:
    layout = plan_shards(size, num_servers=num_servers, min_shard_bytes=64, segment_bytes=4096)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    expected = [s.index for s in layout.segments if s.start < stop and start < s.stop]
    assert list(layout.covering(start, stop)) == (expected if stop > start else [])


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), servers)
def test_tensors_that_must_stay_whole_are_never_cut(sizes: list[int], num_servers: int) -> None:
    ends = list(accumulate(sizes))
    layout = plan_shards(
        ends[-1],
        num_servers=num_servers,
        min_shard_bytes=64,
        segment_bytes=4096,
        cut_at=ends[:-1],
    )
    assert [s.start for s in layout.segments] == [0, *(s.stop for s in layout.segments[:-1])]
    assert layout.num_parameters == ends[-1]
    assert all(s.size > 0 and s.stop in ends for s in layout.segments)
    assert {s.server for s in layout.segments} == set(range(layout.num_servers))


def test_shards_of_whole_tensors_are_as_even_as_they_can_be() -> None:
    layout = plan_shards(1000, num_servers=2, min_shard_bytes=4, cut_at=[100, 480, 600])
    assert [layout.bounds(server) for server in range(2)] == [(0, 480), (480, 1000)]


def test_what_must_not_be_cut_is_one_shard_of_one_segment() -> None:
    layout = plan_shards(1000, num_servers=3, min_shard_bytes=4, segment_bytes=64, cut_at=[])
    assert (layout.num_servers, len(layout.segments)) == (1, 1)


def test_a_small_model_uses_one_server() -> None:
    assert plan_shards(1000, num_servers=4).num_servers == 1


def test_large_shards_have_large_segments() -> None:
    layout = plan_shards(25_000_000, num_servers=1)
    assert len(layout.segments) == 24
    assert len(plan_shards(1_200_000, num_servers=1).segments) == 4


def test_a_model_just_over_a_mebibyte_is_not_cut_in_halves() -> None:
    assert len(plan_shards(266_610, num_servers=1).segments) == 1


@pytest.mark.parametrize(("size", "num_servers"), [(0, 1), (1, 0)])
def test_nothing_cannot_be_cut(size: int, num_servers: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan_shards(size, num_servers=num_servers)


@given(st.integers(2, 5000), st.integers(1, 4), st.data())
def test_no_segment_lies_on_both_sides_of_a_border(
    size: int, servers: int, data: st.DataObject
) -> None:
    borders = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=3)))
    layout = plan_shards(
        size, num_servers=servers, min_shard_bytes=64, segment_bytes=512, borders=borders
    )
    edges = [0, *(segment.stop for segment in layout.segments)]
    assert set(borders) <= set(edges)
    assert edges == sorted(edges)
    assert [segment.index for segment in layout.segments] == list(range(len(layout.segments)))
