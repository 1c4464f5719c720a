"""Every ticket is completed exactly once, whatever workers do."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.consistency.rule import ConsistencyRule
from phalanx.control.parameter_server.batches import BatchAssignment, BatchScheduler
from phalanx.spec.epoch_quota import EpochQuota
from phalanx.wire.parameter_server import CompletedTicket
from phalanx.wire.ticket_set import TicketSet
from phalanx.wire.tickets import TicketPart, TicketPlan

ASYNC = ConsistencyRule()
BSP = ConsistencyRule(gather=None, fresh=True, barrier=True)
SSP = ConsistencyRule(lead=1)
PLENTY = 10_000


class Bench:
    """A scheduler whose workers say what they want, and get it ticket by ticket."""

    def __init__(self, plan: TicketPlan, *, static: bool, rule: ConsistencyRule = ASYNC) -> None:
        self.scheduler = BatchScheduler(plan, rule, static=static, now=0.0)

    def take(self, worker: int, count: int, present: Collection[int]) -> list[int]:
        """Tickets that a worker gets when it asks until it has so many, or there are none."""
        taken: list[int] = []
        while len(taken) < count:
            self.scheduler.request(worker, count - len(taken))
            given = [t for one in self.scheduler.assign(worker, present) for t in one.tickets]
            if not given:
                break
            taken += given
        self.scheduler.request(worker, 0)
        return taken

    def complete(self, worker: int, ticket: int) -> bool:
        done = CompletedTicket(ticket, num_samples=1, loss_sum=0.0, num_correct=0)
        return self.scheduler.complete(worker, [done], want=0, now=0.0) == [done]

    def lose(self, worker: int, present: Collection[int] = ()) -> int:
        return self.scheduler.lose(worker, present)[0]


def test_numbering_runs_through_parts_steps_and_epochs() -> None:
    plan = TicketPlan(num_parts=3, num_steps=4)
    assert plan.unit(1) == TicketPart(epoch=0, step=0, part=0)
    assert plan.unit(3) == TicketPart(epoch=0, step=0, part=2)
    assert plan.unit(4) == TicketPart(epoch=0, step=1, part=0)
    assert plan.first(1) == 13
    assert plan.unit(plan.first(2, step=3)) == TicketPart(epoch=2, step=3, part=0)


def test_static_parts_stay_with_their_worker() -> None:
    bench = Bench(TicketPlan(num_parts=2, num_steps=3), static=True)
    bench.scheduler.open(1, 7, {0, 1})
    assert bench.take(1, 10, {0, 1}) == [2, 4, 6]
    assert bench.take(1, 10, {0, 1}) == []
    assert bench.take(0, 1, {0, 1}) == [1]


def test_absent_workers_parts_are_anybodys() -> None:
    bench = Bench(TicketPlan(num_parts=2, num_steps=2), static=True)
    bench.scheduler.open(1, 5, {1})
    assert bench.take(1, 10, {1}) == [2, 4, 1, 3]


def test_a_lost_workers_tickets_come_first_and_its_late_word_does_not_count() -> None:
    bench = Bench(TicketPlan(num_parts=2, num_steps=2), static=False)
    bench.scheduler.open(1, 5, {0, 1})
    assert bench.take(0, 2, {0, 1}) == [1, 2]
    assert bench.complete(0, 1)
    assert bench.lose(0, {1}) == 1
    assert not bench.complete(0, 2)
    assert bench.take(1, 3, {1}) == [2, 3, 4]
    assert bench.complete(1, 2)
    assert not bench.complete(1, 2)
    assert not bench.scheduler.is_drained


def test_the_gate_holds() -> None:
    bench = Bench(TicketPlan(num_parts=1, num_steps=5), static=False)
    bench.scheduler.open(1, 3, {0})
    assert bench.take(0, 9, {0}) == [1, 2]
    for ticket in (1, 2):
        bench.complete(0, ticket)
    assert bench.scheduler.is_drained
    bench.scheduler.open(3, 6, {0})
    assert bench.take(0, 9, {0}) == [3, 4, 5]


def test_nothing_is_assigned_while_the_gate_is_closed() -> None:
    bench = Bench(TicketPlan(num_parts=1, num_steps=2), static=False)
    bench.scheduler.request(0, 1)
    assert bench.scheduler.assign(0, {0}) == []
    [first] = bench.scheduler.open(1, 3, {0})
    assert first == BatchAssignment(0, (1,))
    bench.scheduler.close()
    assert bench.take(0, 1, {0}) == []


def test_only_workers_that_others_wait_for_are_told_to_leave_when_idle() -> None:
    plan = TicketPlan(num_parts=2, num_steps=1)
    for rule, told in ((SSP, [BatchAssignment(1, ())]), (ASYNC, [])):
        scheduler = BatchScheduler(plan, rule, static=False, now=0.0)
        scheduler.open(1, 2, {0, 1})
        scheduler.request(0, 1)
        assert scheduler.assign(0, {0, 1}) == [BatchAssignment(0, (1,))]
        scheduler.request(1, 1)
        assert scheduler.assign(1, {0, 1}) == told


def test_idle_workers_push_without_samples_when_a_round_is_stalled() -> None:
    scheduler = BatchScheduler(TicketPlan(2, 1), BSP, static=True, now=0.0)
    scheduler.open(1, 3, {0, 1})
    scheduler.request(0, 2)
    assert scheduler.assign(0, {0, 1}) == [BatchAssignment(0, (1,))]
    done = CompletedTicket(1, num_samples=1, loss_sum=0.0, num_correct=0)
    scheduler.complete(0, [done], want=2, now=5.0)
    assert scheduler.even_out(5.5) == []
    assert scheduler.even_out(6.5) == [BatchAssignment(0, (0,))]
    assert scheduler.even_out(7.0) == [], "it has only just got its turn"


@pytest.mark.parametrize(
    ("rule", "in_rounds", "holds_back"),
    [
        (ASYNC, False, False),
        (BSP, True, False),
        (ConsistencyRule(gather=None, spare=1, fresh=True, barrier=True), False, True),
        (SSP, False, True),
        (ConsistencyRule(lead=1, lead_max=3), False, True),
        (ConsistencyRule(gather=2, fresh=True, barrier=True), False, True),
        (ConsistencyRule(gather=3, fresh=True, barrier=True), True, False),
        (ConsistencyRule(gather=2), False, False),
    ],
    ids=["async", "bsp", "backup", "ssp", "dssp", "k_sync", "k_sync of all", "k_async"],
)
def test_who_waits_for_whom_among_three_workers(
    rule: ConsistencyRule, in_rounds: bool, holds_back: bool
) -> None:
    assert (rule.in_rounds(3), rule.holds_back(3)) == (in_rounds, holds_back)


@given(st.data(), st.booleans(), st.integers(1, 4), st.integers(1, 6))
def test_exactly_once_over_random_histories(
    data: st.DataObject, static: bool, num_parts: int, num_steps: int
) -> None:
    plan = TicketPlan(num_parts=num_parts, num_steps=num_steps)
    bench = Bench(plan, static=static)
    present = set(range(num_parts))
    bench.scheduler.open(1, plan.first(1), present)
    held: dict[int, list[int]] = {worker: [] for worker in present}
    counted: Counter[int] = Counter()
    for _ in range(200):
        if bench.scheduler.is_drained:
            break
        worker = data.draw(st.sampled_from(sorted(held)))
        act = data.draw(st.sampled_from(["take", "done", "lose"]))
        if act == "take" and worker in present:
            held[worker] += bench.take(worker, data.draw(st.integers(1, 3)), present)
        elif act == "done" and held[worker]:
            ticket = held[worker].pop()
            counted[ticket] += bench.complete(worker, ticket)
        elif act == "lose" and worker in present and len(present) > 1:
            # It may still believe that it holds its tickets, as a frozen worker does.
            present.discard(worker)
            _, work = bench.scheduler.lose(worker, present)
            for one in work:
                held[one.worker] += one.tickets
    for worker in sorted(present):
        held[worker] += bench.take(worker, PLENTY, present)
    for worker in sorted(present):
        for ticket in held[worker]:
            counted[ticket] += bench.complete(worker, ticket)
    # Static parts of present workers are left to them.
    if not static or len(present) == num_parts:
        assert bench.scheduler.is_drained
    assert all(count == 1 for count in counted.values() if count)
    if bench.scheduler.is_drained:
        assert sorted(ticket for ticket, count in counted.items() if count) == list(
            range(1, plan.first(1))
        )


@given(data=st.data(), static=st.booleans())
def test_a_shortened_gate_completes_what_is_begun_and_nothing_more(
    data: st.DataObject, static: bool
) -> None:
    num_workers = data.draw(st.integers(1, 4))
    plan = TicketPlan(num_parts=num_workers, num_steps=data.draw(st.integers(1, 6)))
    epoch = data.draw(st.integers(0, 2))
    first = data.draw(st.integers(0, plan.num_steps - 1))
    bench = Bench(plan, static=static)
    present = set(range(num_workers))
    bench.scheduler.open(plan.first(epoch, first), plan.first(epoch + 1), present)
    done: list[int] = []
    handed_out = [plan.first(epoch, first) - 1]

    def act(moves: list[tuple[int, int, bool]]) -> None:
        """Workers take, and complete or lose what they hold."""
        for worker, count, loses in moves:
            taken = bench.take(worker, count, present)
            handed_out.extend(taken)
            if loses:
                bench.lose(worker)
            else:
                done.extend(one for one in taken if bench.complete(worker, one))

    workers = st.integers(0, num_workers - 1)
    moves = st.lists(st.tuples(workers, st.integers(1, 5), st.booleans()), max_size=8)
    before = data.draw(moves)
    act(before)
    begun = max(handed_out)
    stop = bench.scheduler.shorten()
    assert plan.unit(stop).part == 0
    # The batch that holds the last ticket that anybody had is the last; without one, there is none.
    assert 0 < stop - begun <= num_workers if before else stop == begun + 1
    act(data.draw(moves))
    for worker in present:
        act([(worker, PLENTY, False)])
    assert bench.scheduler.is_drained
    assert sorted(done) == list(range(plan.first(epoch, first), stop))


@given(
    data=st.data(),
    totals=st.lists(st.integers(0, 7), min_size=1, max_size=4).filter(any),
    rule=st.sampled_from([ASYNC, BSP, SSP]),
)
def test_parts_of_any_size_are_done_once_also_if_the_first_is_empty(
    data: st.DataObject, totals: list[int], rule: ConsistencyRule
) -> None:
    rows = tuple(data.draw(st.integers(1, 3)) for _ in totals)
    num_steps = max(-(-total // row) for total, row in zip(totals, rows, strict=True))
    portions = EpochQuota(totals=tuple(totals), rows=rows, num_steps=num_steps)
    parts = len(totals)
    plan = TicketPlan.of(sum(totals), global_batch=sum(rows), num_parts=parts, portions=portions)
    bench = Bench(plan, static=False, rule=rule)
    present = set(range(parts))
    bench.scheduler.open(plan.first(0), plan.first(1), present)
    lost = data.draw(st.sampled_from([None, *present]))
    if lost is not None and parts > 1:
        bench.take(lost, data.draw(st.integers(0, 3)), present)
        present.discard(lost)
        bench.lose(lost)
    done = [
        ticket
        for _ in range(num_steps * parts)
        for worker in sorted(present)
        # 0 is no ticket: the round lacks a push of this worker.
        for ticket in bench.take(worker, 1, present)
        if ticket and bench.complete(worker, ticket)
    ]
    assert bench.scheduler.is_drained
    wanted = [one for one in range(plan.first(0), plan.first(1)) if plan.has_samples(one)]
    assert sorted(done) == wanted
    assert plan.step_at(sum(totals)) == num_steps


def test_parts_that_run_out_get_no_more_tickets() -> None:
    portions = EpochQuota(totals=(5, 2), rows=(2, 2), num_steps=3)
    plan = TicketPlan.of(7, global_batch=4, num_parts=2, portions=portions)
    bench = Bench(plan, static=True)
    bench.scheduler.open(plan.first(0), plan.first(1), {0, 1})
    assert [plan.unit(t) for t in bench.take(1, 9, {0, 1})] == [TicketPart(0, 0, 1)]
    steps = [plan.unit(ticket).step for ticket in bench.take(0, 9, {0, 1})]
    assert steps == [0, 1, 2]
    assert [plan.step_at(samples) for samples in (0, 4, 6, 7)] == [0, 1, 2, 3]
    assert [samples for samples in range(8) if plan.begins_at(samples)] == [0, 4, 6, 7]


@pytest.mark.parametrize("static", [False, True])
def test_an_epoch_of_millions_of_tickets_is_opened_at_once(static: bool) -> None:
    plan = TicketPlan(200, 100_000)
    scheduler = BatchScheduler(plan, ConsistencyRule(), static=static, now=0.0)
    scheduler.request(7, 3)
    tracemalloc.start()
    [work] = scheduler.open(plan.first(1), plan.first(2), present=range(200))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
    first = plan.first(1)
    step = plan.num_parts if static else 1
    begin = first + 7 if static else first
    assert work.tickets == (begin, begin + step, begin + 2 * step)
    assert not scheduler.is_drained


def held_by(scheduler: BatchScheduler, *tickets: int) -> None:
    """A restored server says what it contains."""
    scheduler.done.note_held(0, TicketSet(scheduler.plan.num_parts, tickets).encode())


def completed(*tickets: int) -> list[CompletedTicket]:
    return [CompletedTicket(ticket, 1, 0.0, 0) for ticket in tickets]


def test_what_a_restored_server_lacks_is_done_again_and_counts_no_second_time() -> None:
    plan = TicketPlan(2, 3)
    scheduler = BatchScheduler(plan, ConsistencyRule(), static=False, now=0.0)
    scheduler.request(0, 6)
    present = [0]
    given = [t for one in scheduler.open(1, 7, present) for t in one.tickets]
    assert scheduler.complete(0, completed(*given), want=6, now=0.0)
    while not scheduler.is_drained:
        given = [t for one in scheduler.assign(0, present) for t in one.tickets]
        scheduler.complete(0, completed(*given), want=6, now=0.0)
    scheduler.close()
    scheduler.done.source_chosen(0, [])
    held_by(scheduler, 1, 2, 4, 5)
    count, work = scheduler.repeat(0, present)
    assert (count, work) == (2, [BatchAssignment(0, (3,))])
    assert scheduler.complete(0, completed(3), want=1, now=0.0) == []
    assert scheduler.assign(0, present) == [BatchAssignment(0, (6,))]
    assert scheduler.complete(0, completed(6), want=1, now=0.0) == []
    assert scheduler.is_drained


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_batch_that_only_the_lost_server_had_taken_follows_when_it_is_done(is_lost: bool) -> None:
    scheduler = BatchScheduler(TicketPlan(1, 1), ConsistencyRule(), static=False, now=0.0)
    scheduler.request(0, 1)
    assert scheduler.open(1, 2, [0]) == [BatchAssignment(0, (1,))]
    scheduler.done.source_chosen(0, scheduler.only_held([1, 99]))
    held_by(scheduler)
    assert scheduler.repeat(0, [0]) == (0, [])
    scheduler.request(1, 1)
    if is_lost:
        # Whoever computes it instead pushes it to every server.
        assert scheduler.lose(0, [1]) == (1, [BatchAssignment(1, (1,))])
        assert len(scheduler.complete(1, completed(1), want=0, now=0.0)) == 1
    else:
        assert len(scheduler.complete(0, completed(1), want=0, now=0.0)) == 1
        assert not scheduler.is_drained
        assert scheduler.assign(1, [0, 1]) == [BatchAssignment(1, (1,))]
        assert scheduler.complete(1, completed(1), want=0, now=0.0) == []
    assert scheduler.is_drained
