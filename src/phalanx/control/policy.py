"""What to make of the state of the processes: facts in, verdict out; no clock, no I/O.

When one worker dies, the others fail too, because their peer is gone. The policy's task is to name
the one that was the cause: a machine that is gone outranks a process ended by a signal, that one
that reported an error of its own, that a frozen one, and complaints about a lost peer come last.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from phalanx.errors import ExitCode
from phalanx.spec.job import DeadlineSpec

# How long to collect the echoes of a failure before naming its cause.
ECHO_S = 1.0


@dataclass(frozen=True)
class ReportedError:
    """What a process said before it ended."""

    kind: str
    message: str
    traceback: str
    exit_code: int


@dataclass(frozen=True)
class ProcessFacts:
    """What is known of one process at one moment."""

    process: str
    joined: bool
    done: bool
    silent_s: float
    age_s: float
    exit_code: int | None = None
    error: ReportedError | None = None
    machine: str = ""  # where it runs, if not on the controller's own
    lost: str | None = None  # why nothing is known of it any more

    @property
    def who(self) -> str:
        """What messages call it."""
        return f"{self.process} on {self.machine}" if self.machine else self.process


@dataclass(frozen=True)
class Trouble:
    """Why a run cannot go on."""

    process: str
    cause: str
    exit_code: ExitCode
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the controller is to do; nothing set means: go on.

    Attributes:
        finished: Everything is done.
        trouble: The run cannot go on, for this reason.
        replace: Processes that are lost, and are to be started again.
    """

    finished: bool = False
    trouble: Trouble | None = None
    replace: tuple[Trouble, ...] = ()


class Weight(IntEnum):
    """How near a trouble is to the cause; the lowest is the cause."""

    LOST_MACHINE = 0  # the machine is gone, with all that ran there
    SIGNAL = 1  # ended by a signal
    OWN_ERROR = 2  # reported an error of its own
    SILENT_EXIT = 3  # ended without a word
    FROZEN = 4  # no heartbeat
    NEVER_JOINED = 5  # did not report in time after its start
    LOST_PEER = 6  # complains about another


def find_cause(
    processes: Sequence[ProcessFacts], *, deadlines: DeadlineSpec, since_suspicion_s: float | None
) -> tuple[bool, Trouble | None]:
    """Where every process needs every other: is something wrong, and what is the cause?

    Args:
        processes: All processes of the run.
        deadlines: The limits of the job.
        since_suspicion_s: Time since something was first wrong; None: nothing was so far.

    Returns:
        Whether something is wrong, and the cause as soon as the echoes have been collected.
    """
    found = [weighed for facts in processes if (weighed := diagnose(facts, deadlines)) is not None]
    if not found:
        return False, None
    weight, trouble = min(found, key=lambda pair: pair[0])
    certain = weight in (
        Weight.LOST_MACHINE,
        Weight.SIGNAL,
        Weight.FROZEN,
        Weight.NEVER_JOINED,
    )
    if certain or (since_suspicion_s is not None and since_suspicion_s >= ECHO_S):
        return True, trouble
    return True, None


def diagnose(facts: ProcessFacts, deadlines: DeadlineSpec) -> tuple[Weight, Trouble] | None:
    """What is wrong with one process, if anything."""
    if facts.lost is not None and not facts.done:
        return Weight.LOST_MACHINE, Trouble(
            process=facts.process,
            cause=f"{facts.process} is lost with machine {facts.machine}: {facts.lost}",
            exit_code=ExitCode.WORKER_LOST,
        )
    if facts.exit_code is not None and facts.exit_code < 0:
        return Weight.SIGNAL, _ended_by_signal(facts, -facts.exit_code)
    if facts.error is not None:
        weight = Weight.LOST_PEER if facts.error.kind == "PeerError" else Weight.OWN_ERROR
        return weight, Trouble(
            process=facts.process,
            cause=f"{facts.who} failed: {facts.error.message}",
            exit_code=ExitCode(facts.error.exit_code),
            detail=facts.error.traceback,
        )
    if facts.exit_code is not None and not (facts.done and facts.exit_code == 0):
        return Weight.SILENT_EXIT, Trouble(
            process=facts.process,
            cause=f"{facts.who} ended with exit code {facts.exit_code} without saying why",
            exit_code=ExitCode.WORKER_LOST,
        )
    if facts.exit_code is None and not facts.joined and facts.age_s > deadlines.start_s:
        return Weight.NEVER_JOINED, Trouble(
            process=facts.process,
            cause=f"{facts.who} did not join within {deadlines.start_s:g} s",
            exit_code=ExitCode.LAUNCH,
        )
    if facts.exit_code is None and facts.joined and facts.silent_s > deadlines.heartbeat_s:
        return Weight.FROZEN, Trouble(
            process=facts.process,
            cause=f"{facts.who} is frozen: no sign of life for {facts.silent_s:.1f} s",
            exit_code=ExitCode.WORKER_LOST,
        )
    return None


def _ended_by_signal(facts: ProcessFacts, number: int) -> Trouble:
    name = signal.Signals(number).name
    hint = "; the system may have run out of memory" if number == signal.SIGKILL else ""
    return Trouble(
        process=facts.process,
        cause=f"{facts.who} was killed by {name}{hint}",
        exit_code=ExitCode.WORKER_LOST,
    )
