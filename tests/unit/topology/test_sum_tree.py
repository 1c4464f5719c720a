"""Trees of topologies: every one over all members, with the promised depth and load."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import SpecError
from phalanx.spec.topology import TOPOLOGIES
from phalanx.topology.sum_tree import ROOT, SumTree, distinct_topologies, plan_trees

LAYOUTS = st.lists(st.integers(0, 4), min_size=2, max_size=33)


def sent_share(trees: tuple[SumTree, ...], rank: int) -> float:
    """How often a member sends the whole tensor: up once, and down to each child."""
    sent = sum(len(tree.children[rank]) + (tree.parents[rank] != ROOT) for tree in trees)
    return sent / len(trees)


@given(st.sampled_from(TOPOLOGIES.built_in), LAYOUTS)
def test_every_tree_reaches_all_members(name: str, machines: list[int]) -> None:
    for tree in plan_trees(name, machines):
        assert sorted(rank for level in tree.levels for rank in level) == [*range(len(machines))]
        assert len(tree.edges) == len(machines) - 1


@given(st.integers(2, 40))
def test_depth_and_load_are_those_of_the_algorithms(size: int) -> None:
    trees = {
        name: plan_trees(name, range(size)) for name in ("direct", "ring", "tree", "butterfly")
    }
    depths = {name: max(tree.depth for tree in own) for name, own in trees.items()}
    logarithm = math.floor(math.log2(size))
    assert depths["direct"] == 1
    assert depths["ring"] == size - 1
    assert depths["tree"] <= logarithm
    assert depths["butterfly"] == logarithm + (size > 1 << logarithm)
    loads = {name: [sent_share(own, rank) for rank in range(size)] for name, own in trees.items()}
    for name in ("direct", "ring"):
        assert loads[name] == pytest.approx([2 * (size - 1) / size] * size)
    # With children in one of two trees at most, nobody sends more than twice the tensor.
    assert max(loads["tree"]) <= 2.0


@given(LAYOUTS)
def test_between_machines_a_hierarchy_sends_what_one_member_per_machine_would(
    machines: list[int],
) -> None:
    trees = plan_trees("hierarchical", machines)
    num_machines = len(set(machines))
    for machine in set(machines):
        crossing = sum(
            (machines[rank] == machine) != (machines[parent] == machine)
            for tree in trees
            for rank, parent in tree.edges
        )
        assert crossing / len(trees) == pytest.approx(2 * (num_machines - 1) / num_machines)


def test_those_that_are_the_same_in_a_group_are_listed_once() -> None:
    assert list(distinct_topologies([0, 1])) == ["direct"]
    assert list(distinct_topologies([0, 1, 2, 3])) == ["direct", "ring", "tree", "butterfly"]
    assert "hierarchical" in distinct_topologies([0, 0, 1, 1])


@pytest.mark.parametrize(
    "lists",
    [
        [],
        [[-1, 0]],
        [[-1, 0, 5]],
        [[-1, -1, 0]],
        [[1, 0, -1]],
        [[-1, 0, 0], [1, 2, 0]],
    ],
    ids=["none", "too short", "nobody", "two roots", "a circle", "the second has no root"],
)
def test_what_is_no_tree_is_refused(
    lists: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(f"made_up_{abs(hash(str(lists)))}")
    module.parents = lambda machines: lists  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(SpecError, match="no tree over all of 3 workers"):
        plan_trees(f"{module.__name__}:parents", [0, 1, 2])
