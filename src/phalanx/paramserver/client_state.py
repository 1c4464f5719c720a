"""Define the states of a client of parameter servers, and their transitions.

`Client` checks every step against the table, so that a call out of order fails at once and not by a
wrong answer. The diagram in `docs/explain-protocol.md` is this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from phalanx.wire.bulk import Header
from phalanx.wire.moments import enter_state


@dataclass(frozen=True)
class Detached:
    """Entered at no server: before the first `connect`, and after `leave`.

    Attributes:
        holds: Whether the buffer is what the servers begin with, so that they need not send it.
    """

    holds: bool = False


@dataclass(frozen=True)
class Connecting:
    """Connections to all servers are being made."""

    holds: bool = False


@dataclass(frozen=True)
class Entering:
    """ENTER was sent to every server; its parameters are the reply."""


@dataclass(frozen=True)
class Attached:
    """Entered at every server, and nothing is outstanding."""


@dataclass(frozen=True)
class Pushing:
    """Segments of a gradient are sent as soon as they are final."""

    push: Header


@dataclass(frozen=True)
class Awaiting:
    """Every segment of the gradient is final; replies are outstanding."""

    push: Header


@dataclass(frozen=True)
class Pulling:
    """All parameters are pulled without a push."""


@dataclass(frozen=True)
class PullingDetached:
    """All parameters are pulled after `leave`, without entering."""


@dataclass(frozen=True)
class Detaching:
    """LEAVE was sent; each server has to confirm it."""


ClientState = (
    Detached
    | Connecting
    | Entering
    | Attached
    | Pushing
    | Awaiting
    | Pulling
    | PullingDetached
    | Detaching
)


class ClientEvent(StrEnum):
    """Events between the states of a client."""

    CONNECT = "connect"
    CONNECTED = "connected"
    ANSWERED = "answered"  # every awaited segment has arrived
    BEGIN = "begin"
    FINAL = "final"  # the last segment of the gradient is final
    PULL = "pull"
    LEAVE = "leave"
    LEFT = "left"  # every server has confirmed it


CLIENT_TRANSITIONS: Mapping[tuple[type[ClientState], ClientEvent], type[ClientState]] = {
    (Detached, ClientEvent.CONNECT): Connecting,
    (Connecting, ClientEvent.CONNECTED): Entering,
    (Entering, ClientEvent.ANSWERED): Attached,
    (Attached, ClientEvent.BEGIN): Pushing,
    (Pushing, ClientEvent.FINAL): Awaiting,
    (Awaiting, ClientEvent.ANSWERED): Attached,
    (Attached, ClientEvent.PULL): Pulling,
    (Pulling, ClientEvent.ANSWERED): Attached,
    (Detached, ClientEvent.PULL): PullingDetached,
    (PullingDetached, ClientEvent.ANSWERED): Detached,
    (Attached, ClientEvent.LEAVE): Detaching,
    (Detaching, ClientEvent.LEFT): Detached,
}


def check_transition(before: ClientState, event: ClientEvent, after: ClientState) -> None:
    """Check a transition of a client against the table, and announce its state if it is right.

    Raises:
        ValueError: The call that caused the event is out of order.
    """
    expected = CLIENT_TRANSITIONS.get((type(before), event))
    if expected is None:
        match before:
            case Pushing() | Awaiting():
                raise ValueError("a push is still on its way; wait for it first")
            case _:
                state = type(before).__name__.lower()
                raise ValueError(f"a client that is {state} cannot take '{event}'")
    assert expected is type(after), f"{event} leads from {before} to {expected}, not to {after}"
    enter_state(after)
