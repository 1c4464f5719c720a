"""Every ticket is completed exactly once, whatever workers do."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from phalanx.control.dispatch import Dispatcher
from phalanx.spec.epoch_quota import EpochQuota
from phalanx.wire.tickets import TicketPlan, Unit


def test_numbering_runs_through_parts_steps_and_epochs() -> None:
    plan = TicketPlan(num_parts=3, num_steps=4)
    assert plan.unit(1) == Unit(epoch=0, step=0, part=0)
    assert plan.unit(3) == Unit(epoch=0, step=0, part=2)
    assert plan.unit(4) == Unit(epoch=0, step=1, part=0)
    assert plan.first(1) == 13
    assert plan.unit(plan.first(2, step=3)) == Unit(epoch=2, step=3, part=0)


def test_static_parts_stay_with_their_worker() -> None:
    plan = TicketPlan(num_parts=2, num_steps=3)
    dispatcher = Dispatcher(plan, static=True)
    dispatcher.open_gate(1, 7)
    assert dispatcher.take(1, 10, {0, 1}) == [2, 4, 6]
    assert dispatcher.take(1, 10, {0, 1}) == []
    assert dispatcher.take(0, 1, {0, 1}) == [1]


def test_absent_workers_parts_are_anybodys() -> None:
    dispatcher = Dispatcher(TicketPlan(num_parts=2, num_steps=2), static=True)
    dispatcher.open_gate(1, 5)
    assert dispatcher.take(1, 10, {1}) == [2, 4, 1, 3]


def test_a_lost_workers_tickets_come_first_and_its_late_word_does_not_count() -> None:
    dispatcher = Dispatcher(TicketPlan(num_parts=2, num_steps=2), static=False)
    dispatcher.open_gate(1, 5)
    assert dispatcher.take(0, 2, {0, 1}) == [1, 2]
    assert dispatcher.complete(0, 1)
    assert dispatcher.give_back(0) == [2]
    assert not dispatcher.complete(0, 2)
    assert dispatcher.take(1, 3, {1}) == [2, 3, 4]
    assert dispatcher.complete(1, 2)
    assert not dispatcher.complete(1, 2)
    assert not dispatcher.is_drained


def test_the_gate_holds() -> None:
    dispatcher = Dispatcher(TicketPlan(num_parts=1, num_steps=5), static=False)
    dispatcher.open_gate(1, 3)
    assert dispatcher.take(0, 9, {0}) == [1, 2]
    for ticket in (1, 2):
        dispatcher.complete(0, ticket)
    assert dispatcher.is_drained
    dispatcher.open_gate(3, 6)
    assert dispatcher.take(0, 9, {0}) == [3, 4, 5]


@given(st.data(), st.booleans(), st.integers(1, 4), st.integers(1, 6))
def test_exactly_once_over_random_histories(
    data: st.DataObject, static: bool, num_parts: int, num_steps: int
) -> None:
    plan = TicketPlan(num_parts=num_parts, num_steps=num_steps)
    dispatcher = Dispatcher(plan, static=static)
    dispatcher.open_gate(1, plan.first(1))
    present = set(range(num_parts))
    held: dict[int, list[int]] = {worker: [] for worker in present}
    counted: Counter[int] = Counter()
    for _ in range(200):
        if dispatcher.is_drained:
            break
        worker = data.draw(st.sampled_from(sorted(held)))
        act = data.draw(st.sampled_from(["take", "done", "lose"]))
        if act == "take" and worker in present:
            held[worker] += dispatcher.take(worker, data.draw(st.integers(1, 3)), present)
        elif act == "done" and held[worker]:
            ticket = held[worker].pop()
            counted[ticket] += dispatcher.complete(worker, ticket)
        elif act == "lose" and worker in present and len(present) > 1:
            # It may still believe that it holds its tickets, as a frozen worker does.
            present.discard(worker)
            dispatcher.give_back(worker)
    for worker in sorted(present):
        while tickets := dispatcher.take(worker, 5, present):
            held[worker] += tickets
    for worker in sorted(present):
        for ticket in held[worker]:
            counted[ticket] += dispatcher.complete(worker, ticket)
    # Static parts of present workers are left to them.
    if not static or len(present) == num_parts:
        assert dispatcher.is_drained
    assert all(count == 1 for count in counted.values() if count)
    if dispatcher.is_drained:
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
    dispatcher = Dispatcher(plan, static=static)
    dispatcher.open_gate(plan.first(epoch, first), plan.first(epoch + 1))
    present = set(range(num_workers))
    done: list[int] = []

    def act(moves: list[tuple[int, int, bool]]) -> None:
        """Workers take, and complete or lose what they hold."""
        for worker, count, loses in moves:
            taken = dispatcher.take(worker, count, present)
            if loses:
                dispatcher.give_back(worker)
            else:
                done.extend(one for one in taken if dispatcher.complete(worker, one))

    workers = st.integers(0, num_workers - 1)
    moves = st.lists(st.tuples(workers, st.integers(1, 5), st.booleans()), max_size=8)
    before = data.draw(moves)
    act(before)
    begun = max(dispatcher._highest, plan.first(epoch, first) - 1)
    stop = dispatcher.shorten_gate()
    assert plan.unit(stop).part == 0
    # The batch that holds the last ticket that anybody had is the last; without one, there is none.
    assert 0 < stop - begun <= num_workers if before else stop == begun + 1
    act(data.draw(moves))
    for worker in present:
        act([(worker, 10_000, False)])
    assert dispatcher.is_drained
    assert sorted(done) == list(range(plan.first(epoch, first), stop))


def test_parts_that_run_out_get_no_more_tickets() -> None:
    portions = EpochQuota(totals=(5, 2), rows=(2, 2), num_steps=3)
    plan = TicketPlan.of(7, global_batch=4, num_parts=2, portions=portions)
    dispatcher = Dispatcher(plan, static=True)
    dispatcher.open_gate(plan.first(0), plan.first(1))
    assert [plan.unit(t) for t in dispatcher.take(1, 9, {0, 1})] == [Unit(0, 0, 1)]
    steps = [plan.unit(ticket).step for ticket in dispatcher.take(0, 9, {0, 1})]
    assert steps == [0, 1, 2]
    assert [plan.step_at(samples) for samples in (0, 4, 6, 7)] == [0, 1, 2, 3]
    assert [samples for samples in range(8) if plan.begins_at(samples)] == [0, 4, 6, 7]
