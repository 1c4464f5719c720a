"""Orders of operations: complete, possible, and as their schedule says."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.split.graph import NetworkGraph, Places, RowShare, one_each, pieces
from phalanx.split.op_order import BACKWARD, FORWARD, SplitOp, SplitTimeline, depths, simulate
from phalanx.split.placement_search import PlacementProblem
from support.graphs import chain, costs, questions


def play(question: PlacementProblem, places: Places) -> SplitTimeline:
    return simulate(
        question.graph,
        places,
        question.costs,
        num_rows=question.num_rows,
        micro_batches=question.micro_batches,
        schedule=question.schedule,
    )


def run_blocking(graph: NetworkGraph, places: Places, timeline: SplitTimeline) -> int:
    """Let every worker go through its order, waiting for what it needs; returns steps taken."""
    done: set[tuple[int, SplitOp]] = set()
    position = [0] * len(timeline.orders)

    def holders(other: int, part: int, worker: int) -> list[int]:
        own = RowShare(places[part].index(worker), len(places[part]))
        return [
            one
            for index, one in enumerate(places[other])
            if own.meets(RowShare(index, len(places[other])))
        ]

    def ready(worker: int, op: SplitOp) -> bool:
        if op.direction == FORWARD:
            return all(
                (one, SplitOp(FORWARD, op.micro_batch, source)) in done
                for source in graph.parts[op.part].reads
                for one in holders(source, op.part, worker)
            )
        return (worker, SplitOp(FORWARD, op.micro_batch, op.part)) in done and all(
            (one, SplitOp(BACKWARD, op.micro_batch, reader)) in done
            for reader in graph.readers[op.part]
            for one in holders(reader, op.part, worker)
        )

    moved = True
    while moved:
        moved = False
        for worker, order in enumerate(timeline.orders):
            while position[worker] < len(order) and ready(worker, order[position[worker]]):
                done.add((worker, order[position[worker]]))
                position[worker] += 1
                moved = True
    assert position == [len(order) for order in timeline.orders], "workers wait in a circle"
    return len(done)


@st.composite
def placed(draw: st.DrawFn) -> tuple[PlacementProblem, Places]:
    question = draw(questions(most_parts=6, most_workers=4))
    workers = range(question.costs.num_workers)
    places = tuple(
        tuple(draw(st.lists(st.sampled_from(workers), min_size=1, max_size=3, unique=True)))
        for _ in question.graph.parts
    )
    return question, places


@settings(max_examples=80)
@given(placed())
def test_no_order_ever_waits_in_a_circle(case: tuple[PlacementProblem, Places]) -> None:
    question, places = case
    timeline = play(question, places)
    count = len(pieces(question.num_rows, question.micro_batches))
    expected = sum(
        count * len(holders) * (2 if part.needs_gradient else 1)
        for part, holders in zip(question.graph.parts, places, strict=True)
    )
    assert run_blocking(question.graph, places, timeline) == expected
    assert timeline.step_s >= max(timeline.busy_s) - 1e-9
    assert timeline.imbalance >= 1.0


@settings(max_examples=40)
@given(placed())
def test_every_worker_takes_micro_batches_of_a_part_in_turn(
    case: tuple[PlacementProblem, Places],
) -> None:
    """Messages of one part carry the same tag, so they must be sent and awaited in one order."""
    question, places = case
    for order in play(question, places).orders:
        seen: dict[tuple[int, int], list[int]] = defaultdict(list)
        for op in order:
            seen[op.direction, op.part].append(op.micro_batch)
        assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_micro_batches_stay_in_turn_when_a_later_one_arrives_first() -> None:
    """Three holders of unequal rows: one gets its rows of a later micro-batch earlier."""
    timeline = simulate(
        chain(2038, 1, 1, parameters=0),
        ((0, 1), (0, 1, 2), (0,)),
        costs(*[(1.0,) * 3] * 3, bytes_per_s=1e4),
        num_rows=9,
        micro_batches=4,
        schedule="gpipe",
    )
    for order in timeline.orders:
        for part in range(3):
            forward = [op.micro_batch for op in order if op[::2] == (FORWARD, part)]
            assert forward == sorted(forward)


def test_gpipe_goes_all_the_way_forward_first() -> None:
    timeline = simulate(
        chain(1, 1, 1),
        one_each([0, 1, 2]),
        costs(*[(1.0,) * 3] * 3),
        num_rows=8,
        micro_batches=4,
        schedule="gpipe",
    )
    for order in timeline.orders:
        directions = [op.direction for op in order]
        assert directions == sorted(directions)


def test_1f1b_keeps_no_more_than_its_depth() -> None:
    graph, places = chain(1, 1, 1, 1), one_each([0, 1, 2, 3])
    assert depths(graph, places) == (4, 3, 2, 1)
    timeline = simulate(
        graph, places, costs(*[(1.0,) * 4] * 4), num_rows=32, micro_batches=16, schedule="1f1b"
    )
    for worker, order in enumerate(timeline.orders):
        kept, most = 0, 0
        for op in order:
            kept += 1 if op.direction == FORWARD else -1
            most = max(most, kept)
        assert most == 4 - worker


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_is_the_published_one(schedule: str) -> None:
    """(p - 1) / (m + p - 1) of the time, for p equal stages and m micro-batches."""
    stages, pieces_ = 4, 12
    timeline = simulate(
        chain(*[1] * stages),
        one_each(range(stages)),
        costs(*[(1.0,) * stages] * stages, bytes_per_s=1e15),
        num_rows=pieces_,
        micro_batches=pieces_,
        schedule=schedule,  # type: ignore[arg-type]
    )
    idle = 1 - timeline.busy_s[0] / timeline.step_s
    assert idle == pytest.approx((stages - 1) / (pieces_ + stages - 1))


def test_one_piece_of_a_chain_takes_the_sum_and_both_messages() -> None:
    timeline = simulate(
        chain(1000, 4),
        one_each([0, 1]),
        costs((1.0, 2.0), (1.0, 2.0), latency_s=0.1, bytes_per_s=1e5),
        num_rows=10,
    )
    # Forward 1 + 2, backward 2 + 4, and 10 kB each way at 100 kB/s.
    assert timeline.step_s == pytest.approx(9.0 + 2 * (0.1 + 0.1))
    assert timeline.busy_s == pytest.approx((3.0, 6.0))
    assert timeline.imbalance == pytest.approx(6.0 / 4.5)
