"""Each member owns a slice: all send it theirs, and it returns the sum to all. Two hops."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.topology.sum_tree import ROOT


def direct_parents(machines: Sequence[int]) -> list[list[int]]:
    """Return one star per member, with that member as its root."""
    ranks = range(len(machines))
    return [[ROOT if rank == owner else owner for rank in ranks] for owner in ranks]
