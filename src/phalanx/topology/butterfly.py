"""Members exchange halves, then quarters, ... with partners at half the distance each time.

Notation: N members, P the greatest power of two among 1 … N. The slice of owner o is sent from r to
the member whose number differs from r in the highest of the bits in which r and o differ. Members
beyond P send theirs to the member P below them first, and get sums from it.
Reference: Thakur, Rabenseifner and Gropp 2005 (recursive halving and doubling).
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.topology.sum_tree import ROOT


def butterfly_parents(machines: Sequence[int]) -> list[list[int]]:
    """Return one tree per member below the greatest power of two, with it as the root."""
    size = len(machines)
    paired = 1 << (size.bit_length() - 1)
    return [[_parent(rank, owner, paired) for rank in range(size)] for owner in range(paired)]


def _parent(rank: int, owner: int, paired: int) -> int:
    if rank >= paired:
        return rank - paired
    differing = rank ^ owner
    return rank ^ (1 << (differing.bit_length() - 1)) if differing else ROOT
