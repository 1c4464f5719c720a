"""Define the states of a parameter-server run and the transitions between them.

A run trains up to a gate (the end of an epoch, a checkpoint, or the end of its phase). There it
comes to rest in a fixed order: workers pause, servers flush, the evaluator reads. The diagram in
docs/explain-protocol.md is this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.control.coordinator import PhaseEnd
from phalanx.control.state_machine import Transitions


@dataclass(frozen=True)
class Starting:
    """No worker has reported: the number of batches is unknown."""


@dataclass(frozen=True)
class Training:
    """Tickets are assigned up to the gate."""

    opened_at: float


@dataclass(frozen=True)
class Pausing:
    """Every ticket is done; workers are asked to pause."""

    unpaused: frozenset[int]
    """Workers that have not answered."""


@dataclass(frozen=True)
class Flushing:
    """Workers are paused; servers apply the gradients that they have gathered."""

    unflushed: frozenset[str]
    """Processes whose server has not answered."""


@dataclass(frozen=True)
class Closing:
    """Everything is applied; the evaluator is still busy with the gate before."""

    unflushed: frozenset[str] = frozenset()
    """Processes whose server was restored meanwhile, and does not know yet that workers rest."""


@dataclass(frozen=True)
class AtGate:
    """The state of the servers is being evaluated; training waits until it has been read."""

    is_unsaved: bool
    """Whether the workers continue from memory and the state is not written."""
    unflushed: frozenset[str] = frozenset()
    """As in `Closing`."""


@dataclass(frozen=True)
class HandingOver:
    """The phase is over; every worker reads the servers' final state."""

    is_unsaved: bool
    asked: frozenset[int] = frozenset()
    """Workers that were asked to."""
    read: frozenset[int] = frozenset()
    """Workers that have."""
    unflushed: frozenset[str] = frozenset()
    """As in `Closing`."""


@dataclass(frozen=True)
class Left:
    """The workers hold the whole state: another strategy may begin."""

    end: PhaseEnd


@dataclass(frozen=True)
class Finishing:
    """The job is done; every process is dismissed."""


RunState = (
    Starting | Training | Pausing | Flushing | Closing | AtGate | HandingOver | Left | Finishing
)


class GateEvent(StrEnum):
    """Events between the states of a run."""

    PLANNED = "planned"  # the first worker has reported; there are batches to train
    NOTHING_TO_TRAIN = "nothing to train"  # the same, but the run was resumed at its end
    DRAINED = "drained"  # every ticket up to the gate is done
    PAUSED = "all paused"  # no worker computes, and every server is whole
    FLUSHED = "all flushed"
    EVALUATOR_FREE = "evaluator free"
    GATE_OPENED = "gate opened"
    REPEATED = "tickets to repeat"  # that a restored server lacks
    LIMIT_REACHED = "limit reached"  # of the phase
    HANDED_OVER = "handed over"
    JOB_DONE = "job done"


INITIAL = Starting
FINAL = (Left, Finishing)
TRANSITIONS: Transitions[RunState] = {
    (Starting, GateEvent.PLANNED): Training,
    (Starting, GateEvent.NOTHING_TO_TRAIN): Pausing,
    (Training, GateEvent.DRAINED): Pausing,
    (Pausing, GateEvent.PAUSED): Flushing,
    (Pausing, GateEvent.REPEATED): Training,
    (Flushing, GateEvent.FLUSHED): Closing,
    (Flushing, GateEvent.REPEATED): Training,
    (Closing, GateEvent.EVALUATOR_FREE): AtGate,
    (AtGate, GateEvent.GATE_OPENED): Training,
    (AtGate, GateEvent.LIMIT_REACHED): HandingOver,
    (AtGate, GateEvent.JOB_DONE): Finishing,
    (HandingOver, GateEvent.HANDED_OVER): Left,
}
