from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.pool.probe import pair_rounds


@given(st.integers(0, 40))
def test_every_pair_meets_once_and_nobody_is_in_two_pairs_of_a_round(num_machines: int) -> None:
    rounds = pair_rounds(num_machines)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(map(list, combinations(range(num_machines), 2)))
    for pairs in rounds:
        busy = [one for pair in pairs for one in pair]
        assert len(busy) == len(set(busy))


def test_rounds_can_be_limited() -> None:
    assert len(pair_rounds(100, 15)) == 15
