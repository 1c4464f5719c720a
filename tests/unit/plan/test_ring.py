"""All-reduce by hand, and how much of it backward hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.plan.facts import LinkFacts, NetworkFacts, SystemCosts
from phalanx.plan.network_model import exposed_s, ring_link, ring_s

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
