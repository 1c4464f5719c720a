"""A worker's states: what an event carries over, and what cannot happen."""

from __future__ import annotations

import pytest

from phalanx.worker.parameter_server.states import (
    GATE_OPEN,
    WORKER_TRANSITIONS,
    Away,
    Computing,
    Ended,
    Joining,
    Released,
    Resting,
    Starved,
    WorkerEvent,
    next_state,
)


def test_a_starved_worker_knows_since_when() -> None:
    assert next_state(Computing(), WorkerEvent.DRAINED, 7.5) == Starved(since_s=7.5)


def test_only_a_released_worker_ends_with_another_phase_to_come() -> None:
    assert next_state(Released(), WorkerEvent.FINISHED, 0.0) == Ended(handed_over=True)
    for state in (Joining(), Resting(), Computing(), Starved(), Away()):
        assert next_state(state, WorkerEvent.FINISHED, 0.0) == Ended(handed_over=False)


def test_a_gate_opens_with_a_ticket_and_closes_with_a_pause() -> None:
    for (before, event), after in WORKER_TRANSITIONS.items():
        if event == WorkerEvent.TICKET:
            assert after in GATE_OPEN
        elif event != WorkerEvent.DRAINED:
            assert after not in GATE_OPEN, (before, event)


def test_no_ticket_is_computed_without_a_place_or_after_the_end() -> None:
    for state in (Joining(), Released(), Ended()):
        with pytest.raises(AssertionError, match="cannot take 'ticket'"):
            next_state(state, WorkerEvent.TICKET, 0.0)
