from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.wire.ticket_set import TicketSet

TICKETS = st.lists(st.integers(1, 200), max_size=80)
PARTS = st.integers(1, 7)


@given(tickets=TICKETS, parts=PARTS)
def test_it_is_a_set(tickets: list[int], parts: int) -> None:
    held, known = TicketSet(parts), set[int]()
    for ticket in tickets:
        assert held.add(ticket) == (ticket not in known)
        known.add(ticket)
        assert ticket in held
    assert set(held) == known
    assert len(held) == len(known)
    assert not any(ticket in held for ticket in set(range(1, 201)) - known)


@given(tickets=TICKETS, others=TICKETS, parts=PARTS, below=st.integers(0, 201))
def test_sets_are_compared_cut_and_joined(
    tickets: list[int], others: list[int], parts: int, below: int
) -> None:
    held, other = TicketSet(parts, tickets), TicketSet(parts, others)
    assert set(held.difference(other)) == set(tickets) - set(others)
    joined = held.copy()
    joined.update(other)
    assert joined == TicketSet(parts, [*tickets, *others])
    rejoined = TicketSet(parts)
    for part in held.parts(2):
        assert part.num_ranges <= 2
        rejoined.update(part)
    assert rejoined == held
    held.discard_below(below)
    assert set(held) == {ticket for ticket in tickets if ticket >= below}


@given(tickets=TICKETS, parts=PARTS)
def test_it_survives_the_wire(tickets: list[int], parts: int) -> None:
    held = TicketSet(parts, tickets)
    assert TicketSet.decode(held.encode(), parts) == held
    assert len(held.encode()) == 8 + 16 * held.num_ranges


@given(data=st.binary(max_size=100))
def test_garbage_is_refused_or_is_a_set(data: bytes) -> None:
    try:
        found = TicketSet.decode(data, 3)
    except ValueError:
        return
    assert not data or found.encode() == data


def test_sets_of_another_run_are_refused() -> None:
    with pytest.raises(ValueError, match="not of this run"):
        TicketSet.decode(TicketSet(2, [1, 2]).encode(), 3)


def test_millions_of_tickets_take_a_few_bytes_however_unequal_the_workers_are() -> None:
    # Worker 0 has done all of its part of a long epoch, worker 2 half of it, worker 1 nothing.
    parts, steps = 3, 60_000
    held = TicketSet(parts)
    for step in range(steps):
        held.add(1 + step * parts)
        if step % 2:
            held.add(3 + (step // 2) * parts)
    assert len(held) == steps + steps // 2
    assert held.num_ranges == 2
