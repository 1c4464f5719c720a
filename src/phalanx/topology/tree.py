"""Two binary trees with half of the tensor each: hops grow with the logarithm of the members.

Members that have children in one tree are leaves in the other, so that nobody sends more than twice
the tensor. Reference: Sanders, Speck and Träff 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.topology.sum_tree import ROOT


def tree_parents(machines: Sequence[int]) -> list[list[int]]:
    """Return the two trees."""
    size = len(machines)
    parents = _parents_in_order(size)
    # Places with children are even ones, and a place of one tree is odd where it is even in the
    # other: mirrored where the size is even, shifted by one where it is odd.
    first = [rank + 1 for rank in range(size)]
    second = [size - rank if size % 2 == 0 else rank or size for rank in range(size)]
    return [_named(parents, places) for places in (first, second)]


def _parents_in_order(size: int) -> dict[int, int]:
    """Return the parents of places 1 … size of a balanced tree whose order is that of places."""
    found: dict[int, int] = {}
    pending = [(1, size, ROOT)]
    while pending:
        begin, end, parent = pending.pop()
        if begin > end:
            continue
        # The place that the highest power of two divides; ranges begin with an odd one.
        middle = max(range(begin, end + 1), key=lambda place: place & -place)
        found[middle] = parent
        pending += [(begin, middle - 1, middle), (middle + 1, end, middle)]
    return found


def _named(parents: dict[int, int], places: list[int]) -> list[int]:
    rank_at = {place: rank for rank, place in enumerate(places)}
    return [rank_at.get(parents[place], ROOT) for place in places]
