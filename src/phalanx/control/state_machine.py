"""Advance through named states by a table of transitions.

States are frozen dataclasses that hold what is known only while they last. The table is data: tests
compare the diagrams in the docs with it, and a transition that it lacks is a programming error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from phalanx.wire.moments import enter_state

State = TypeVar("State")

Transitions = Mapping[tuple[type[State], StrEnum], type[State]]
"""The state that follows a state after an event."""


class StateMachine(Generic[State]):
    """Hold the current state and refuse transitions that the table lacks."""

    def __init__(self, initial: State, transitions: Transitions[State]) -> None:
        self._state = initial
        self._transitions = transitions

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    def advance(self, event: StrEnum, target: State) -> None:
        """Enter the state that follows an event.

        Raises:
            AssertionError: The table names another state, or none.
        """
        source = type(self._state)
        expected = self._transitions.get((source, event))
        if expected is not type(target):
            raise AssertionError(
                f"{source.__name__} on {event} leads to "
                f"{expected.__name__ if expected else 'nothing'}, not {type(target).__name__}"
            )
        self._state = target
        enter_state(target)

    def update(self, state: State) -> None:
        """Replace the facts held in the current state."""
        assert type(state) is type(self._state), f"{state} is not the current state"
        self._state = state
