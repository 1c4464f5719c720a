"""All-reduce by hand, along any topology, and how much of it backward hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.plan.facts import LinkFacts, NetworkFacts, SystemCosts
from phalanx.plan.network_model import along_trees_s, exposed_s, ring_link, ring_s
from phalanx.plan.synchronous import crossing_edges
from phalanx.topology.sum_tree import plan_trees

BARE = SystemCosts(call_s=0.0, reduce_s_per_byte=0.0)
LINK = LinkFacts(latency_s=1e-3, bandwidth_bytes_per_s=1e6)


def test_by_hand() -> None:
    # 4 workers, 1 MB at 1 MB/s: 6 steps of 1 ms and a quarter of a second.
    assert ring_s(1e6, 4, LINK, BARE) == pytest.approx(6 * (1e-3 + 0.25))
    assert ring_s(1e6, 1, LINK, BARE) == 0.0
    adding = SystemCosts(call_s=0.5, reduce_s_per_byte=1e-6)
    assert ring_s(1e6, 4, LINK, adding) == pytest.approx(6 * (1e-3 + 0.25) + 0.5 + 0.75)


def test_nothing_is_hidden_without_backward() -> None:
    assert exposed_s([1.0, 2.0, 3.0], 0.0) == pytest.approx(6.0)


def test_only_the_last_bucket_is_exposed_when_backward_is_long() -> None:
    assert exposed_s([1.0, 1.0, 1.0], 30.0) == pytest.approx(1.0)


def test_buckets_queue_up() -> None:
    # Ready at 1, 2: the first is done at 4, the second at 7; backward ends at 2.
    assert exposed_s([3.0, 3.0], 2.0) == pytest.approx(5.0)


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=8), st.floats(0.0, 20.0))
def test_exposed_lies_between_the_last_and_all(exchanges: list[float], backward: float) -> None:
    exposed = exposed_s(exchanges, backward)
    assert exchanges[-1] - 1e-9 <= exposed <= sum(exchanges) + 1e-9


def test_the_slowest_link_of_the_ring_counts() -> None:
    fast, slow = (LinkFacts(latency_s=1e-4, bandwidth_bytes_per_s=b) for b in (1e9, 1e7))
    network = NetworkFacts(between=fast, within=fast, pairs={"b": {"c": slow}})
    assert ring_link(["a", "b", "c"], network) == slow
    assert ring_link(["a", "b"], network) == fast
    # Two workers of one machine share its memory.
    assert ring_link(["a", "a"], network).bandwidth_bytes_per_s == pytest.approx(5e8)


def test_along_the_trees_of_a_ring_it_is_the_formula_of_the_ring() -> None:
    network = NetworkFacts(between=LINK, within=LINK)
    adding = SystemCosts(call_s=0.5, reduce_s_per_byte=1e-6)
    for size, num_bytes in ((2, 1e6), (4, 1e6), (5, 4e3)):
        machines = [f"m{rank}" for rank in range(size)]
        found = along_trees_s(num_bytes, plan_trees("ring", range(size)), machines, network, adding)
        assert found == pytest.approx(ring_s(num_bytes, size, LINK, adding))


def test_fewer_hops_or_fewer_bytes_between_machines_count() -> None:
    within = LinkFacts(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
    network = NetworkFacts(between=LINK, within=within)

    def time_s(name: str, num_bytes: float, per_machine: int) -> float:
        layout = [rank // per_machine for rank in range(8)]
        machines = [f"m{number}" for number in layout]
        return along_trees_s(num_bytes, plan_trees(name, layout), machines, network, BARE)

    # Next to nothing to send: hops of 1 ms, two for each level there and back.
    hops = {name: time_s(name, 8.0, 1) for name in ("direct", "ring", "tree", "butterfly")}
    expected = {"direct": 2e-3, "ring": 14e-3, "tree": 6e-3, "butterfly": 6e-3}
    assert hops == pytest.approx(expected, rel=0.02)
    # Two machines of four: each sends half of everything, instead of what each worker has.
    assert time_s("hierarchical", 1e6, 4) == pytest.approx(1.0, rel=0.02)
    assert time_s("direct", 1e6, 4) == pytest.approx(4.0, rel=0.02)


def test_edges_between_machines_are_counted_for_encryption() -> None:
    layout = (0, 0, 1, 2, 2)
    trees = plan_trees("direct", layout)
    for rank, shared in crossing_edges("direct", layout).items():
        crossing = [e for tree in trees for e in tree.edges if layout[e[0]] != layout[e[1]]]
        assert shared == sum(rank in edge for edge in crossing) / len(trees)
    # One worker per machine of two sends half of the slices, once there and once back.
    assert crossing_edges("hierarchical", (0, 0, 1, 1)) == dict.fromkeys(range(4), 0.5)
    assert crossing_edges("ring", (0, 0, 0)) == {}
