from __future__ import annotations

from phalanx.paramserver.ledger import Ledger


def test_each_segment_of_a_batch_is_taken_once() -> None:
    ledger = Ledger(2)
    assert ledger.claim(7, 0)
    assert not ledger.claim(7, 0)
    assert not ledger.is_complete(7)
    assert ledger.claim(7, 1)
    assert ledger.is_complete(7)


def test_what_was_given_back_can_be_taken_again() -> None:
    ledger = Ledger(1)
    ledger.claim(7, 0)
    ledger.give_back(7, 0)
    assert ledger.claim(7, 0)


def test_pushes_without_a_ticket_are_never_refused() -> None:
    ledger = Ledger(1)
    assert ledger.claim(0, 0)
    assert ledger.claim(0, 0)
    assert not ledger.is_complete(0)


def test_state_survives_and_old_tickets_are_forgotten() -> None:
    ledger, other = Ledger(1), Ledger(1)
    for ticket in (3, 4):
        ledger.claim(ticket, 0)
        ledger.apply(0, [(ticket, 5)])
    ledger.forget_below(4)
    other.load_state(ledger.state())
    assert other.claim(3, 0)
    assert not other.claim(4, 0)
