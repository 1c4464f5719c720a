"""Each member sends to the next one only: the fewest connections in use, the most hops.

Notation: N members; N slices travel at once, each of them N-1 hops to its owner and N-1 hops back.
Reference: Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.topology.sum_tree import ROOT


def ring_parents(machines: Sequence[int]) -> list[list[int]]:
    """Return one path per member, around the ring, that ends with it.

    Neighbours are on one machine wherever they can be, so that a machine with several members has
    one neighbour before and one after it.
    """
    size = len(machines)
    order = sorted(range(size), key=lambda rank: (machines[rank], rank))
    after = {rank: order[(place + 1) % size] for place, rank in enumerate(order)}
    return [[ROOT if rank == owner else after[rank] for rank in range(size)] for owner in order]
