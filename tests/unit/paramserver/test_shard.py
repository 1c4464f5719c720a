"""A shard without sockets: numbers under every rule, exactly-once, half-arrived pushes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.optimizer import FlatOptimizer
from phalanx.paramserver.compression import Received
from phalanx.paramserver.shard import PushedSegment, Shard, ShardReply
from phalanx.spec.optimize import AdamSpec, OptimizerSpec, SgdSpec
from phalanx.wire.bulk import Kind
from support.paramserver import consistency_rule, make_shard, small_layout

SIZE = 12
LAYOUT = small_layout(SIZE, segments=3)
SEGMENTS = LAYOUT.segments


def gradient_of(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def send(
    shard: Shard,
    worker: int,
    clock: int,
    gradient: torch.Tensor | None,
    *,
    only: list[int] | None = None,
    readver: int = 0,
    weight: float = 1.0,
    ticket: int = 0,
) -> list[ShardReply]:
    answers: list[ShardReply] = []
    for segment in SEGMENTS:
        if only is not None and segment.index not in only:
            continue
        values = None if gradient is None else gradient[segment.start : segment.stop].clone()
        received = None if values is None else Received(Kind.F32, values, segment.size)
        answers += shard.deliver(
            PushedSegment(worker, clock, readver, segment.index, received, weight, 1, ticket)
        )
    return answers


def started(workers: int, optimizer: OptimizerSpec | None = None, **fields: object) -> Shard:
    shard = make_shard(
        LAYOUT, rule=consistency_rule(**fields), workers=range(workers), optimizer=optimizer
    )
    for worker in range(workers):
        answers = shard.enter(worker, 0)
        assert [(a.worker, a.index, a.readver) for a in answers] == [
            (worker, i, 0) for i in range(3)
        ]
    return shard


@given(st.permutations([(w, s) for w in range(3) for s in range(3)]), st.integers(0, 1000))
def test_bsp_is_one_step_along_the_mean_in_whatever_order_segments_come(
    order: list[tuple[int, int]], seed: int
) -> None:
    shard = started(3, AdamSpec(lr=0.1), consistency="bsp")
    reference = torch.zeros(SIZE)
    optimizer = FlatOptimizer(AdamSpec(lr=0.1), reference)
    gradients = [gradient_of(seed + worker) for worker in range(3)]
    answers: list[ShardReply] = []
    for worker, segment in order:
        answers += send(shard, worker, 1, gradients[worker] / 3, only=[segment], weight=1 / 3)
    optimizer.step(sum(gradients, torch.zeros(SIZE)) / 3, 0.1)
    assert torch.allclose(shard.updater.parameters, reference, atol=1e-6)
    assert sorted((a.worker, a.index) for a in answers) == sorted(order)
    assert {a.readver for a in answers} == {1}
    assert shard.policy.version == 1
    assert shard.samples_seen == 3


def test_bsp_gives_the_same_bits_in_whatever_order_workers_come() -> None:
    results = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        shard = started(3, consistency="bsp")
        for worker in order:
            send(shard, worker, 1, gradient_of(worker), weight=1 / 3)
        results.append(shard.updater.parameters.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_segment_is_answered_before_the_rest_of_the_push_has_come() -> None:
    shard = started(2, consistency="bsp")
    send(shard, 0, 1, gradient_of(0), only=[2], weight=0.5)
    answers = send(shard, 1, 1, gradient_of(1), only=[2], weight=0.5)
    assert sorted((a.worker, a.index) for a in answers) == [(0, 2), (1, 2)]
    assert not shard.is_settled
    send(shard, 0, 1, gradient_of(0), only=[0, 1], weight=0.5)
    send(shard, 1, 1, gradient_of(1), only=[0, 1], weight=0.5)
    assert shard.is_settled


def test_async_applies_each_gradient_as_it_comes() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="async")
    first = send(shard, 0, 1, torch.ones(SIZE))
    assert [a.index for a in first] == [0, 1, 2]
    send(shard, 1, 1, torch.full((SIZE,), 2.0))
    assert shard.updater.parameters.tolist() == [-3.0] * SIZE
    assert shard.policy.version == 2
    assert shard.staleness.facts()[1].histogram == {1: 1}


def test_a_push_that_comes_again_is_applied_once_and_answered_again() -> None:
    shard = started(1, SgdSpec(lr=1.0), consistency="async")
    send(shard, 0, 1, torch.ones(SIZE))
    again = send(shard, 0, 1, torch.ones(SIZE))
    assert [a.index for a in again] == [0, 1, 2]
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE
    assert shard.num_repeated == 3
    assert shard.policy.num_pushes == 1


def test_a_held_back_push_that_comes_again_is_not_answered_early() -> None:
    shard = started(2, consistency="bsp")
    assert send(shard, 0, 1, gradient_of(0), weight=0.5) == []
    assert send(shard, 0, 1, gradient_of(0), weight=0.5) == []
    assert len(send(shard, 1, 1, gradient_of(1), weight=0.5)) == 6


def test_being_held_begins_with_the_whole_push_and_ends_with_the_last_answer() -> None:
    shard = started(2, consistency="bsp")
    arrivals = [
        (worker, segment, now_s)
        for worker, segment, now_s in [
            (0, 0, 1.0),
            (0, 1, 2.0),
            (0, 2, 3.0),  # worker 0 is done sending, and waits from now on
            (1, 0, 10.0),
            (1, 1, 11.0),
            (1, 2, 15.0),
        ]
    ]
    answers: list[ShardReply] = []
    for worker, index, now_s in arrivals:
        received = Received(Kind.F32, torch.ones(SEGMENTS[index].size), SEGMENTS[index].size)
        answers += shard.deliver(PushedSegment(worker, 1, 0, index, received, 0.5, 1), now_s)
    assert max(a.held_s for a in answers if a.worker == 0) == 12.0
    assert max(a.held_s for a in answers if a.worker == 1) == 0.0
    assert (shard.held_s(0), shard.held_s(1)) == (12.0, 0.0)


def test_ssp_holds_back_the_fast_worker_until_the_slow_has_pushed() -> None:
    shard = started(2, consistency="ssp", staleness=1)
    assert len(send(shard, 0, 1, gradient_of(0))) == 3
    assert send(shard, 0, 2, gradient_of(1)) == []
    answers = send(shard, 1, 1, gradient_of(2))
    assert sorted(a.worker for a in answers) == [0, 0, 0, 1, 1, 1]


def test_k_sync_drops_the_late_gradient_and_says_so() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="k_sync", k=1)
    send(shard, 0, 1, torch.ones(SIZE))
    late = send(shard, 1, 1, torch.full((SIZE,), 100.0))
    assert [a.dropped for a in late] == [True] * 3
    assert {a.readver for a in late} == {1}
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE
    fresh = send(shard, 1, 2, torch.ones(SIZE), readver=1)
    assert [a.dropped for a in fresh] == [False] * 3


def test_k_async_gathers_two_pushes_of_one_worker() -> None:
    shard = started(1, SgdSpec(lr=1.0), consistency="k_async", k=2)
    assert len(send(shard, 0, 1, torch.ones(SIZE))) == 3
    assert shard.updater.parameters.tolist() == [0.0] * SIZE
    send(shard, 0, 2, torch.full((SIZE,), 3.0))
    assert shard.updater.parameters.tolist() == [-2.0] * SIZE


def test_flush_applies_a_part_of_what_k_async_gathers() -> None:
    shard = started(1, SgdSpec(lr=1.0), consistency="k_async", k=5)
    send(shard, 0, 1, torch.ones(SIZE))
    shard.flush()
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE


def test_a_worker_without_samples_keeps_the_round_going() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="bsp")
    send(shard, 0, 1, torch.ones(SIZE))
    assert len(send(shard, 1, 1, None, weight=0.0)) == 6
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE


def test_a_batch_computed_twice_counts_once_on_every_segment() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="async")
    # Worker 0 dies after one of three segments; its batch is given to worker 1.
    send(shard, 0, 1, torch.ones(SIZE), only=[1], ticket=7)
    shard.leave(0)
    send(shard, 1, 1, torch.ones(SIZE), ticket=7)
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE
    # And a third time changes nothing at all.
    send(shard, 1, 2, torch.ones(SIZE), ticket=7)
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE


def test_a_batch_taken_back_from_an_open_round_can_be_done_by_another() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="bsp")
    send(shard, 0, 1, torch.ones(SIZE), only=[0], ticket=7)
    shard.leave(0)
    send(shard, 1, 1, torch.ones(SIZE), ticket=7)
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE


def test_a_round_is_finished_without_a_worker_lost_in_the_middle_of_it() -> None:
    shard = started(3, SgdSpec(lr=1.0), consistency="bsp")
    send(shard, 0, 1, torch.ones(SIZE) / 3, weight=1 / 3)
    send(shard, 2, 1, torch.full((SIZE,), 100.0), only=[0], weight=1 / 3)
    send(shard, 1, 1, torch.full((SIZE,), 3.0) / 3, weight=1 / 3)
    # All three have begun, so the update is closed; segment 0 has all of them and is applied.
    answers = shard.leave(2)
    assert sorted({a.worker for a in answers}) == [0, 1]
    assert shard.policy.version == 1
    assert shard.is_settled
    rest = shard.updater.parameters[SEGMENTS[1].start :]
    assert torch.allclose(rest, torch.full_like(rest, -2.0))


def test_a_newcomer_reads_the_version_that_it_joins_at() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="bsp")
    send(shard, 0, 1, torch.ones(SIZE), weight=0.5)
    assert shard.enter(2, shard.policy.entry_clock(2)) == []
    answers = send(shard, 1, 1, torch.ones(SIZE), weight=0.5)
    assert sorted({a.worker for a in answers}) == [0, 1, 2]
    assert {a.readver for a in answers} == {1}


def test_clipping_looks_at_the_whole_gradient() -> None:
    spec = SgdSpec(lr=1.0, clip_norm=1.0)
    shard = started(1, spec, consistency="async")
    reference = torch.zeros(SIZE)
    FlatOptimizer(spec, reference).step(gradient_of(3), 1.0)
    assert send(shard, 0, 1, gradient_of(3), only=[0, 1]) == []
    assert len(send(shard, 0, 1, gradient_of(3), only=[2])) == 3
    assert torch.allclose(shard.updater.parameters, reference, atol=1e-6)


@pytest.mark.parametrize("consistency", ["bsp", "ssp"])
def test_ssp_with_bound_0_gives_the_numbers_of_bsp(consistency: str) -> None:
    fields: dict[str, object] = {"staleness": 0} if consistency == "ssp" else {}
    shard = started(3, AdamSpec(lr=0.01), consistency=consistency, **fields)
    reference = torch.zeros(SIZE)
    optimizer = FlatOptimizer(AdamSpec(lr=0.01), reference)
    for step in range(1, 20):
        gradients = [gradient_of(10 * step + worker) for worker in range(3)]
        for worker in (1, 2, 0):
            send(shard, worker, step, gradients[worker] / 3, readver=step - 1, weight=1 / 3)
        optimizer.step(sum(gradients, torch.zeros(SIZE)) / 3, 0.01)
    assert torch.allclose(shard.updater.parameters, reference, atol=1e-5)


def test_under_k_async_nobody_waits_for_the_rest_of_another_push() -> None:
    shard = started(2, SgdSpec(lr=1.0), consistency="k_async", k=2)
    send(shard, 0, 1, torch.ones(SIZE), only=[0])
    answers = send(shard, 1, 1, torch.ones(SIZE))
    assert [(a.worker, a.index) for a in answers] == [(1, 0), (1, 1), (1, 2)]
    send(shard, 0, 1, torch.ones(SIZE), only=[1, 2])
    assert shard.updater.parameters.tolist() == [-1.0] * SIZE


def bring(
    shard: Shard, worker: int, clock: int, *, only: int, continues: bool, ticket: int
) -> None:
    """Push one segment of a batch, and leave the others to its other pushes."""
    for segment in SEGMENTS:
        is_aside = segment.index != only
        values = Received(Kind.F32, torch.ones(segment.size), segment.size)
        shard.deliver(
            PushedSegment(
                worker,
                clock,
                shard.policy.version,
                segment.index,
                None if is_aside else values,
                num_samples=4,
                ticket=ticket,
                is_aside=is_aside,
                continues=continues,
            )
        )


def test_a_batch_of_several_pushes_counts_once() -> None:
    shard = started(1, SgdSpec(lr=1.0, momentum=0.0), consistency="bsp")
    for clock in (1, 2, 3):
        assert not shard.ledger.is_complete(5)
        bring(shard, 0, clock, only=clock - 1, continues=clock > 1, ticket=5)
        # Only the segment that it brings has moved.
        moved = [bool(shard.updater.parameters[s.start : s.stop].any()) for s in SEGMENTS]
        assert moved == [index < clock for index in range(3)]
    assert shard.ledger.is_complete(5)
    assert shard.samples_seen == 4
    assert shard.ledger.num_samples == [4, 4, 4]
    assert shard.num_repeated == 0


def test_a_substitute_repeats_only_the_pushes_that_a_lost_worker_did_not_make() -> None:
    shard = started(2, SgdSpec(lr=1.0, momentum=0.0), consistency="async")
    bring(shard, 0, 1, only=0, continues=False, ticket=5)
    shard.leave(0)
    for clock in (1, 2, 3):
        bring(shard, 1, clock, only=clock - 1, continues=clock > 1, ticket=5)
    assert torch.equal(shard.updater.parameters, torch.full((SIZE,), -1.0))
    assert shard.samples_seen == 4
    assert shard.ledger.num_samples == [4, 4, 4]
