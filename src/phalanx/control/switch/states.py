"""Define the states of a run that switches strategies, and the transitions between them.

In `Committed`, on the way back from servers, the rules of the next phase hold already. A
synchronous phase is committed when all workers have left it, which is its end. The diagram in
docs/explain-switch.md is this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.control.state_machine import Transitions
from phalanx.control.switch.phases import PhaseRun
from phalanx.control.switch.transition import PhaseTransition


@dataclass(frozen=True)
class Gathering:
    """Processes start; the first phase begins when all of them are idle."""


@dataclass(frozen=True)
class InPhase:
    """A phase runs until its planned end."""

    phase: PhaseRun


@dataclass(frozen=True)
class Leaving:
    """A phase was asked to end early."""

    phase: PhaseRun
    transition: PhaseTransition


@dataclass(frozen=True)
class Committed:
    """The workers hold the whole state; processes leave the phase one by one."""

    phase: PhaseRun
    transition: PhaseTransition | None


@dataclass(frozen=True)
class HandedOn:
    """New processes continue from a checkpoint; those of this coordinator are dismissed."""


@dataclass(frozen=True)
class Ending:
    """The job is done; processes without work are dismissed."""

    phase: PhaseRun


SwitchState = Gathering | InPhase | Leaving | Committed | HandedOn | Ending


class SwitchEvent(StrEnum):
    """Events between the states of a run that switches."""

    ALL_IDLE = "all idle"
    TRANSITION_REQUESTED = "transition requested"
    HANDED_OVER = "servers handed over"
    PHASE_OVER = "phase over"
    PHASE_OVER_RESTART = "phase over, restart"  # handover: restart
    JOB_DONE = "job done"


INITIAL = Gathering
FINAL = (HandedOn, Ending)
TRANSITIONS: Transitions[SwitchState] = {
    (Gathering, SwitchEvent.ALL_IDLE): InPhase,
    (InPhase, SwitchEvent.TRANSITION_REQUESTED): Leaving,
    (InPhase, SwitchEvent.HANDED_OVER): Committed,
    (InPhase, SwitchEvent.PHASE_OVER): InPhase,
    (InPhase, SwitchEvent.PHASE_OVER_RESTART): HandedOn,
    (InPhase, SwitchEvent.JOB_DONE): Ending,
    (Leaving, SwitchEvent.HANDED_OVER): Committed,
    (Leaving, SwitchEvent.PHASE_OVER): InPhase,
    (Leaving, SwitchEvent.JOB_DONE): Ending,
    (Committed, SwitchEvent.PHASE_OVER): InPhase,
    (Committed, SwitchEvent.PHASE_OVER_RESTART): HandedOn,
}
