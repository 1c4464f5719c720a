"""What crosses the wire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.split.graph import (
    NetworkGraph,
    NetworkPart,
    RowShare,
    one_each,
    pieces,
    total_of,
    traffic_of,
    transfers,
)
from phalanx.split.placement_search import naive_places
from support.graphs import chain


@given(st.integers(0, 100), st.integers(1, 7))
def test_shares_cover_all_rows_once(rows: int, count: int) -> None:
    found = [row for n in range(count) for row in range(*RowShare(n, count).rows(rows))]
    assert found == list(range(rows))


@given(st.integers(1, 100), st.integers(1, 12))
def test_micro_batches_are_as_equal_as_can_be_and_never_empty(rows: int, count: int) -> None:
    found = pieces(rows, count)
    assert sum(found) == rows
    assert min(found) > 0
    assert max(found) - min(found) <= 1


def test_an_output_goes_once_to_each_worker_that_reads_it() -> None:
    graph = NetworkGraph(
        (
            NetworkPart(name="source", out_bytes=10),
            NetworkPart(name="a", reads=(0,), out_bytes=1),
            NetworkPart(name="b", reads=(0,), out_bytes=1),
            NetworkPart(name="c", reads=(0, 1, 2), out_bytes=1),
        )
    )
    assert len(transfers(graph, one_each([0, 1, 1, 1]))) == 1
    traffic = traffic_of(graph, one_each([0, 1, 1, 1]), num_rows=8)
    assert {pair: one.total for pair, one in traffic.items()} == {(0, 1): 80, (1, 0): 80}
    assert total_of(traffic_of(graph, one_each([0, 1, 2, 0]), num_rows=8)).total == 2 * (160 + 16)


def test_no_gradient_goes_back_to_parts_that_learn_nothing() -> None:
    graph = NetworkGraph(
        (
            NetworkPart(name="fixed", out_bytes=10, needs_gradient=False),
            NetworkPart(name="head", reads=(0,), out_bytes=1),
        )
    )
    total = total_of(traffic_of(graph, one_each([0, 1]), num_rows=4))
    assert (total.activations, total.gradients) == (40, 0)


def test_rows_of_replicated_parts_travel_once_between_them() -> None:
    graph = chain(10, 10, parameters=300)
    total = total_of(traffic_of(graph, ((0, 1), (2,)), num_rows=9))
    assert (total.activations, total.gradients) == (90, 90)
    assert total.parameters == 2 * 2 * 1 // 2 * 300 * 4
    moved = total_of(traffic_of(graph, ((0, 1), (1, 2)), num_rows=8))
    # Worker 0 has rows 0-3 and worker 1 rows 4-7; worker 1 wants 0-3 and worker 2 wants 4-7.
    assert moved.activations == 80


def test_naive_placements() -> None:
    graph = chain(1, 1, 1, 1, 1, 1)
    assert naive_places("round_robin", graph, 3) == one_each([0, 1, 2, 0, 1, 2])
    assert naive_places("by_layers", graph, 3) == one_each([0, 0, 1, 1, 2, 2])
    sizes = NetworkGraph(
        tuple(
            NetworkPart(name=f"p{n}", reads=(n - 1,) if n else (), out_bytes=1, parameters=size)
            for n, size in enumerate([900, 50, 50, 500, 500])
        )
    )
    assert naive_places("by_parameters", sizes, 2) == one_each([0, 0, 0, 1, 1])
