"""What to make of the state of the processes: facts in, verdict out; no clock, no I/O.

When one worker dies, the others fail too, because their peer is gone. The policy's task is to name
the one that was the cause: a process ended by a signal outranks one that reported an error of its
own, that outranks a frozen one, and complaints about a lost peer come last.
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
    exit_code: int | None = None
    error: ReportedError | None = None


@dataclass(frozen=True)
class Trouble:
    """Why a run cannot go on."""

    process: str
    cause: str
    exit_code: ExitCode
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the controller is to do: go on, collect echoes of a failure, finish, or give up."""

    finished: bool = False
    suspicious: bool = False
    trouble: Trouble | None = None


class _Weight(IntEnum):
    SIGNAL = 0
    OWN_ERROR = 1
    SILENT_EXIT = 2
    FROZEN = 3
    NEVER_JOINED = 4
    LOST_PEER = 5


def judge(
    processes: Sequence[ProcessFacts],
    *,
    deadlines: DeadlineSpec,
    since_start_s: float,
    since_suspicion_s: float | None,
) -> Verdict:
    """Decide what the state of the processes means.

    Args:
        processes: All processes of the run.
        deadlines: The limits of the job.
        since_start_s: Time since launch.
        since_suspicion_s: Time since the first verdict that was suspicious, if there was one.
    """
    found = [
        weighed
        for facts in processes
        if (weighed := _weigh(facts, deadlines, since_start_s)) is not None
    ]
    if not found:
        finished = all(facts.done and facts.exit_code == 0 for facts in processes)
        return Verdict(finished=finished)
    weight, trouble = min(found, key=lambda pair: pair[0])
    certain = weight in (_Weight.SIGNAL, _Weight.FROZEN, _Weight.NEVER_JOINED)
    if certain or (since_suspicion_s is not None and since_suspicion_s >= ECHO_S):
        return Verdict(suspicious=True, trouble=trouble)
    return Verdict(suspicious=True)


def _weigh(
    facts: ProcessFacts, deadlines: DeadlineSpec, since_start_s: float
) -> tuple[_Weight, Trouble] | None:
    if facts.exit_code is not None and facts.exit_code < 0:
        return _Weight.SIGNAL, _ended_by_signal(facts.process, -facts.exit_code)
    if facts.error is not None:
        weight = _Weight.LOST_PEER if facts.error.kind == "PeerError" else _Weight.OWN_ERROR
        return weight, Trouble(
            process=facts.process,
            cause=f"{facts.process} failed: {facts.error.message}",
            exit_code=ExitCode(facts.error.exit_code),
            detail=facts.error.traceback,
        )
    if facts.exit_code is not None and not (facts.done and facts.exit_code == 0):
        return _Weight.SILENT_EXIT, Trouble(
            process=facts.process,
            cause=f"{facts.process} ended with exit code {facts.exit_code} without saying why",
            exit_code=ExitCode.WORKER_LOST,
        )
    if facts.exit_code is None and not facts.joined and since_start_s > deadlines.start_s:
        return _Weight.NEVER_JOINED, Trouble(
            process=facts.process,
            cause=f"{facts.process} did not join within {deadlines.start_s:g} s",
            exit_code=ExitCode.LAUNCH,
        )
    if facts.exit_code is None and facts.joined and facts.silent_s > deadlines.heartbeat_s:
        return _Weight.FROZEN, Trouble(
            process=facts.process,
            cause=f"{facts.process} is frozen: no sign of life for {facts.silent_s:.1f} s",
            exit_code=ExitCode.WORKER_LOST,
        )
    return None


def _ended_by_signal(process: str, number: int) -> Trouble:
    name = signal.Signals(number).name
    hint = "; the system may have run out of memory" if number == signal.SIGKILL else ""
    return Trouble(
        process=process,
        cause=f"{process} was killed by {name}{hint}",
        exit_code=ExitCode.WORKER_LOST,
    )
