"""First within each machine, then between machines, then back: links carry every sum once.

Notation: H machines, of which the fullest has L members; H L slices. Of slice (h, l) member l of
each machine, counted round, adds what its machine has; that of machine h adds what all machines
have. So the members of a machine share what is sent to others, and so do the machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from phalanx.topology.sum_tree import ROOT


def hierarchical_parents(machines: Sequence[int]) -> list[list[int]]:
    """Return one tree of two levels per machine and place in a machine."""
    members: dict[int, list[int]] = defaultdict(list)
    for rank, machine in enumerate(machines):
        members[machine].append(rank)
    most = max(map(len, members.values()))
    found = []
    for owner in sorted(members):
        for place in range(most):
            heads = {one: ranks[place % len(ranks)] for one, ranks in members.items()}
            found.append([_parent(rank, heads, machines, owner) for rank in range(len(machines))])
    return found


def _parent(rank: int, heads: dict[int, int], machines: Sequence[int], owner: int) -> int:
    head = heads[machines[rank]]
    if rank != head:
        return head
    return ROOT if machines[rank] == owner else heads[owner]
