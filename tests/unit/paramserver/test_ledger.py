from __future__ import annotations

import pytest

from phalanx.paramserver.ledger import Ledger, SegmentTickets


def test_each_segment_of_a_batch_is_taken_once() -> None:
    ledger = Ledger(2)
    assert ledger.claim(7, 0)
    assert not ledger.claim(7, 0)
    assert ledger.is_known(7)
    assert not ledger.is_complete(7)
    assert ledger.claim(7, 1)
    assert ledger.is_complete(7)
    for segment in range(2):
        ledger.apply(segment, [(7, 5)])
        assert not ledger.claim(7, segment)
    assert ledger.is_complete(7)
    assert ledger.num_samples == [5, 5]


def test_what_was_given_back_can_be_taken_again() -> None:
    ledger = Ledger(1)
    ledger.claim(7, 0)
    ledger.give_back(7, 0)
    assert not ledger.is_known(7)
    assert ledger.claim(7, 0)


def test_pushes_without_a_ticket_are_never_refused() -> None:
    ledger = Ledger(1)
    assert ledger.claim(0, 0)
    ledger.apply(0, [(0, 5)])
    assert ledger.claim(0, 0)
    assert not ledger.is_complete(0)
    assert ledger.of_segment(0) == SegmentTickets(b"", 5), "nothing to send"


def test_old_tickets_are_forgotten() -> None:
    ledger = Ledger(1)
    for ticket in (3, 4):
        ledger.claim(ticket, 0)
        ledger.apply(0, [(ticket, 5)])
    ledger.forget_below(4)
    assert ledger.claim(3, 0)
    assert not ledger.claim(4, 0)


def test_a_copy_contains_what_was_applied_segment_by_segment() -> None:
    ledger, other = Ledger(2, num_parts=3), Ledger(2, num_parts=3)
    for ticket in (1, 2, 3):
        for segment in range(2):
            assert ledger.claim(ticket, segment)
    # Batch 1 is in both segments, batch 2 in one, batch 3 waits for others of its update.
    ledger.apply(0, [(1, 5), (2, 4)])
    ledger.apply(1, [(1, 5)])
    other.load_state(ledger.state())
    assert set(other.held()) == {1}
    assert [other.claim(2, segment) for segment in range(2)] == [False, True]
    assert [other.claim(3, segment) for segment in range(2)] == [True, True]
    assert other.num_samples == [9, 5]


def test_copies_of_different_moments_are_told_apart() -> None:
    ledger, other = Ledger(2), Ledger(2)
    early = ledger.of_segment(0)
    ledger.claim(8, 0)
    ledger.claim(8, 1)
    ledger.apply(0, [(8, 1)])
    ledger.apply(1, [(8, 1)])
    other.load_state([early, ledger.of_segment(1)])
    assert other.claim(8, 0)
    assert not other.claim(8, 1)


def test_tickets_of_another_run_are_refused() -> None:
    ledger = Ledger(1, num_parts=2)
    foreign = Ledger(1, num_parts=3)
    foreign.claim(1, 0)
    foreign.apply(0, [(1, 1)])
    with pytest.raises(ValueError, match="not of this run"):
        ledger.check(foreign.of_segment(0))
