"""States of a worker with parameter servers, and the table of its transitions.

A gate is open while the coordinator assigns tickets: from the first ticket until the worker is
paused. The diagram in `docs/explain-protocol.md` is this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Joining:
    """Waits for the addresses of the servers, then for a place at each of them."""


@dataclass(frozen=True)
class Resting:
    """Has a place at every server; no gate is open."""


@dataclass(frozen=True)
class Computing:
    """Computes, pushes and waits for the acknowledgement of a ticket."""


@dataclass(frozen=True)
class Starved:
    """The gate is open, but there is no ticket: the worker waits for others.

    Attributes:
        since_s: By `time.perf_counter`.
    """

    since_s: float = 0.0


@dataclass(frozen=True)
class Away:
    """No place at the servers until the next ticket, so that none of them waits for this worker."""


@dataclass(frozen=True)
class Released:
    """The replica has taken over the servers' last state, for another phase."""


@dataclass(frozen=True)
class Ended:
    """The coordinator has no more work.

    Attributes:
        handed_over: Whether another phase follows.
    """

    handed_over: bool = False


WorkerState = Joining | Resting | Computing | Starved | Away | Released | Ended
GATE_OPEN = (Computing, Starved)


class WorkerEvent(StrEnum):
    """Events that move a worker from one state to the next."""

    JOINED = "joined"
    TICKET = "ticket"
    DRAINED = "drained"  # the last ticket is done
    PAUSED = "paused"
    LEFT = "left"  # paused, and gave up its places
    HANDED_OVER = "handed_over"
    FINISHED = "finished"


WORKER_TRANSITIONS: Mapping[tuple[type[WorkerState], WorkerEvent], type[WorkerState]] = {
    (Joining, WorkerEvent.PAUSED): Joining,
    (Joining, WorkerEvent.JOINED): Resting,
    (Joining, WorkerEvent.FINISHED): Ended,
    (Resting, WorkerEvent.TICKET): Computing,
    (Resting, WorkerEvent.PAUSED): Resting,
    (Resting, WorkerEvent.LEFT): Away,
    (Resting, WorkerEvent.HANDED_OVER): Released,
    (Resting, WorkerEvent.FINISHED): Ended,
    (Computing, WorkerEvent.TICKET): Computing,
    (Computing, WorkerEvent.DRAINED): Starved,
    (Computing, WorkerEvent.PAUSED): Resting,
    (Computing, WorkerEvent.LEFT): Away,
    (Computing, WorkerEvent.HANDED_OVER): Released,
    (Computing, WorkerEvent.FINISHED): Ended,
    (Starved, WorkerEvent.TICKET): Computing,
    (Starved, WorkerEvent.PAUSED): Resting,
    (Starved, WorkerEvent.LEFT): Away,
    (Starved, WorkerEvent.HANDED_OVER): Released,
    (Starved, WorkerEvent.FINISHED): Ended,
    (Away, WorkerEvent.TICKET): Computing,
    (Away, WorkerEvent.PAUSED): Away,
    (Away, WorkerEvent.LEFT): Away,
    (Away, WorkerEvent.HANDED_OVER): Released,
    (Away, WorkerEvent.FINISHED): Ended,
    (Released, WorkerEvent.PAUSED): Released,
    (Released, WorkerEvent.LEFT): Released,
    (Released, WorkerEvent.HANDED_OVER): Released,
    (Released, WorkerEvent.FINISHED): Ended,
}


def next_state(state: WorkerState, event: WorkerEvent, now_s: float) -> WorkerState:
    """Return the state that an event leads to; the table knows every event that can come."""
    after = WORKER_TRANSITIONS.get((type(state), event))
    assert after is not None, f"a worker that is {state} cannot take '{event}'"
    if after is Starved:
        return Starved(since_s=now_s)
    if after is Ended:
        return Ended(handed_over=isinstance(state, Released))
    return after()
