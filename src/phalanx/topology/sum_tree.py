"""Trees along which the members of a group add: pure.

A tensor is cut into as many slices as a topology has trees. Towards the root of its tree every
member adds its own part of the slice to those of its children, in the order of their ranks, and
passes the sum on; the root's sum goes back along the same tree. So all members get the root's bits,
and the same ones every time, whatever arrives first. `comm` adds along these trees, and the planner
counts their edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import cast

from phalanx.errors import SpecError
from phalanx.spec.registry import load
from phalanx.spec.topology import TOPOLOGIES

ROOT = -1
"""What stands for the parent of a root."""


@dataclass(frozen=True)
class SumTree:
    """One tree: by rank, the member that each sends its sum to; `ROOT` for the one that has all."""

    parents: tuple[int, ...]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The members that send to each one, by rank, in rising order."""
        found: list[list[int]] = [[] for _ in self.parents]
        for rank, parent in enumerate(self.parents):
            if parent != ROOT:
                found[parent].append(rank)
        return tuple(map(tuple, found))

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Every member with its parent, but for the root."""
        return [(rank, parent) for rank, parent in enumerate(self.parents) if parent != ROOT]

    @property
    def depth(self) -> int:
        """Edges between the root and the member farthest from it."""
        return len(self.levels) - 1

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Members by their distance from the root; those without a way to it are in none."""
        found, level = [], [self.parents.index(ROOT)]
        while level:
            found.append(tuple(level))
            level = [child for rank in level for child in self.children[rank]]
        return tuple(found)

    def is_sound(self, size: int) -> bool:
        """Return whether every one of so many members has one way to one root."""
        return (
            len(self.parents) == size
            and Counter(self.parents)[ROOT] == 1
            and all(ROOT <= parent < size for parent in self.parents)
            and sum(map(len, self.levels)) == size
        )


ParentLists = Callable[[Sequence[int]], Sequence[Sequence[int]]]
"""What a topology is: a function of the machine of each member, by rank, as numbers from 0. Returns
one list per slice: by rank, the member that each sends its sum to, `ROOT` for the root."""


def plan_trees(name: str, machines: Sequence[int]) -> tuple[SumTree, ...]:
    """Return the trees of a topology, one per slice.

    Args:
        name: In the table of topologies, or an import path.
        machines: Of the members, by rank, as numbers from 0.

    Raises:
        SpecError: There is no such topology, or what it returns are no trees.
    """
    return _trees(name, tuple(machines))


# A planner asks for those of a few groups again and again.
@lru_cache(64)
def _trees(name: str, machines: tuple[int, ...]) -> tuple[SumTree, ...]:
    kind = TOPOLOGIES.find(name)
    lists = cast(ParentLists, load(kind.parents))(machines)
    trees = tuple(SumTree(tuple(map(int, one))) for one in lists)
    if not trees or not all(tree.is_sound(len(machines)) for tree in trees):
        raise SpecError(
            f"topology '{name}' gives no tree over all of {len(machines)} workers for each slice; "
            "a list names each worker's parent, and -1 for the one root"
        )
    return trees


def distinct_topologies(machines: Sequence[int]) -> dict[str, tuple[SumTree, ...]]:
    """Return the built-in topologies that differ in a group of these machines, with their trees."""
    found: dict[str, tuple[SumTree, ...]] = {}
    for name in TOPOLOGIES.built_in:
        trees = plan_trees(name, machines)
        if frozenset(trees) not in map(frozenset, found.values()):
            found[name] = trees
    return found
