"""Planned placement against trying everything."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings

from phalanx.errors import PlanError
from phalanx.split.graph import NetworkGraph, NetworkPart, one_each
from phalanx.split.placement_search import (
    PlacementProblem,
    _units,
    cost_s,
    memory_fault,
    plan_places,
)
from support.graphs import chain, costs, questions


def brute_force(question: PlacementProblem) -> float | None:
    """The least cost over all placements that fit; None: none does.

    Parts without weights stay with what they read, as the planner has it.
    """
    together = {number for unit in _units(question) for number in unit[1:]}
    first = {number: unit[0] for unit in _units(question) for number in unit}
    found = [
        cost_s(question, places)
        for workers in itertools.product(
            range(question.costs.num_workers), repeat=len(question.graph.parts)
        )
        if all(workers[number] == workers[first[number]] for number in together)
        for places in [one_each(workers)]
        if memory_fault(question, places) is None
    ]
    return min(found, default=None)


@settings(max_examples=60)
@given(questions(most_parts=5, most_workers=3))
def test_the_planned_placement_is_the_best_of_all(question: PlacementProblem) -> None:
    best = brute_force(question)
    if best is None:
        with pytest.raises(PlanError, match="memory"):
            plan_places(question)
        return
    answer = plan_places(question)
    assert answer.proven
    assert answer.cost_s == pytest.approx(best)
    assert answer.cost_s == pytest.approx(cost_s(question, answer.places))
    assert memory_fault(question, answer.places) is None


@settings(max_examples=20)
@given(questions(most_parts=5, most_workers=3))
def test_a_short_search_still_gives_a_placement_that_fits(question: PlacementProblem) -> None:
    try:
        answer = plan_places(question, most_work=1)
    except PlanError:
        return
    assert memory_fault(question, answer.places) is None
    naive = cost_s(question, one_each([0] * len(question.graph.parts)))
    if memory_fault(question, one_each([0] * len(question.graph.parts))) is None:
        assert answer.cost_s <= naive


def branches() -> NetworkGraph:
    """A heavy, a middle and a light branch with thin outputs; a trunk that joins them."""
    heavy = [
        NetworkPart(name=f"heavy{n}", reads=(n - 1,) if n else (), out_bytes=10_000)
        for n in range(2)
    ]
    return NetworkGraph(
        (
            *heavy,
            NetworkPart(name="heavy-out", reads=(1,), out_bytes=8),
            NetworkPart(name="middle", out_bytes=8),
            NetworkPart(name="light", out_bytes=8),
            NetworkPart(name="trunk", reads=(2, 3, 4), out_bytes=4),
        )
    )


def test_branches_stay_whole_and_the_heavy_one_goes_to_the_fast_machine() -> None:
    work = (0.4, 0.4, 0.2, 0.5, 0.4, 0.02)
    question = PlacementProblem(
        graph=branches(),
        costs=costs(work, work, tuple(one / 2 for one in work), bytes_per_s=1e5, latency_s=1e-3),
        num_rows=32,
    )
    places = plan_places(question).places
    assert places[0] == places[1] == places[2] == (2,)
    assert len({places[2], places[3], places[4]}) == 3


def test_a_chain_is_not_cut_without_micro_batches_and_is_with_them() -> None:
    graph, work = chain(100, 100), (1.0, 1.0)
    question = PlacementProblem(graph=graph, costs=costs(work, work), num_rows=8)
    assert len(set(plan_places(question).places)) == 1
    pieces = msgspec.structs.replace(question, micro_batches=8)
    assert len(set(plan_places(pieces).places)) == 2


def test_memory_forces_a_cut() -> None:
    parts = tuple(
        msgspec.structs.replace(part, state_bytes=100) for part in chain(10, 10, 10).parts
    )
    question = PlacementProblem(
        graph=NetworkGraph(parts),
        costs=costs((1.0,) * 3, (1.0,) * 3),
        num_rows=4,
        memory_bytes=(250.0, 100.0),
    )
    places = plan_places(question).places
    assert sorted(places) == [(0,), (0,), (1,)]


def test_parts_that_share_weights_stay_together() -> None:
    graph = NetworkGraph(chain(1, 1, 1, 1).parts, tied=((0, 3),))
    question = PlacementProblem(
        graph=graph, costs=costs((1.0,) * 4, (1.0,) * 4), num_rows=8, micro_batches=8
    )
    places = plan_places(question).places
    assert places[0] == places[3]


def test_given_places_are_kept() -> None:
    question = PlacementProblem(
        graph=chain(1, 1, 1),
        costs=costs((1.0,) * 3, (1.0,) * 3, (1.0,) * 3),
        num_rows=8,
        fixed={1: (1, 2)},
    )
    assert plan_places(question).places[1] == (1, 2)
