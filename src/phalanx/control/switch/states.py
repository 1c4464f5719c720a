"""Define the states of a run that switches strategies, and the transitions between them.

`Committed` is the moment of commitment on the way back from servers: from then on the rules of the
next phase hold. A lockstep phase is committed when all workers have left it, which is its end.
docs/explain-switch.md shows the table as a diagram.
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
    """A phase goes on until its planned end."""

    phase: PhaseRun


@dataclass(frozen=True)
class Leaving:
    """A phase was told to end early."""

    phase: PhaseRun
    transition: PhaseTransition


@dataclass(frozen=True)
class Committed:
    """The workers hold what the servers had; processes leave the phase one by one."""

    phase: PhaseRun
    transition: PhaseTransition | None


@dataclass(frozen=True)
class HandedOn:
    """New processes take the run over from a checkpoint; those of this coordinator leave."""


@dataclass(frozen=True)
class Ending:
    """The job is done; processes without work are dismissed."""

    phase: PhaseRun


SwitchState = Gathering | InPhase | Leaving | Committed | HandedOn | Ending


class SwitchEvent(StrEnum):
    """What leads from one state of a run that switches to the next."""

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
