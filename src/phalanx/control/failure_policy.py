"""Decide what the state of the processes means. Pure: facts in, verdict out; no clock, no I/O.

When one worker dies, the others fail too, because their exchange breaks off. `find_cause` names the
process that failed first: a lost machine outranks a process ended by a signal, that outranks a
reported error, that a frozen process; errors about lost peers come last. `find_losses` is for
processes that can be replaced one by one.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from phalanx.errors import ExitCode
from phalanx.spec.job import DeadlineSpec

# Wait this long for secondary failures before naming the cause: the first report is often one.
ECHO_S = 1.0
# Errors that a restart would only repeat.
_HOPELESS = frozenset({"SpecError", "DataError", "EngineError", "StoreError", "MessageTooLarge"})


@dataclass(frozen=True)
class ReportedError:
    """The error that a process reported before it ended."""

    kind: str
    message: str
    traceback: str
    exit_code: int


@dataclass(frozen=True)
class ProcessFacts:
    """The state of one process at one moment."""

    process: str
    joined: bool
    done: bool
    silent_s: float
    age_s: float
    exit_code: int | None = None
    error: ReportedError | None = None
    is_starting: bool = False  # it imports code, which may silence its heartbeats
    is_crowded: bool = False  # others start on its machine, and take its time
    machine: str = ""  # where it runs, if not on the controller's own
    lost: str | None = None  # why nothing is known of it any more

    @property
    def who(self) -> str:
        """Name and machine, as messages show it."""
        return f"{self.process} on {self.machine}" if self.machine else self.process


@dataclass(frozen=True)
class ProcessFailure:
    """A failed process, with the cause and the exit code of the run."""

    process: str
    cause: str
    exit_code: ExitCode
    detail: str = ""
    lost_machine: str = ""  # the machine that it was lost with

    def after_pause(self, pause_s: float | None) -> ProcessFailure:
        """Name the controller's own pause, if it had one just before it lost a process."""
        if pause_s is None or self.exit_code is not ExitCode.WORKER_LOST:
            return self
        cause = (
            f"{self.cause} (the controller itself had not run for {pause_s:.1f} s just before: "
            "suspended, or its machine overloaded)"
        )
        return replace(self, cause=cause)


@dataclass(frozen=True)
class RunVerdict:
    """Decision about the run; nothing set means: go on.

    Attributes:
        finished: Everything is done.
        failure: The run cannot go on, for this reason.
        replace: Lost processes to start again.
    """

    finished: bool = False
    failure: ProcessFailure | None = None
    replace: tuple[ProcessFailure, ...] = ()


class Severity(IntEnum):
    """Order of failures by how near they are to the cause; the lowest is the cause."""

    LOST_MACHINE = 0  # the machine is gone, with all that ran there
    SIGNAL = 1  # ended by a signal
    OWN_ERROR = 2  # reported an error, other than a lost peer
    SILENT_EXIT = 3  # ended without a word
    FROZEN = 4  # no heartbeat
    NEVER_JOINED = 5  # did not report in time after its start
    LOST_PEER = 6  # complains about another


def find_cause(
    processes: Sequence[ProcessFacts], *, deadlines: DeadlineSpec, since_suspicion_s: float | None
) -> tuple[bool, ProcessFailure | None]:
    """Find the cause of a failure where every process needs every other.

    Args:
        processes: All processes of the run.
        deadlines: The limits of the job.
        since_suspicion_s: Time since the first sign of failure; None: there was none so far.

    Returns:
        Whether something is wrong, and the cause once secondary failures have been collected.
    """
    found = [pair for facts in processes if (pair := diagnose(facts, deadlines)) is not None]
    if not found:
        return False, None
    severity, failure = min(found, key=lambda pair: pair[0])
    certain = severity in (
        Severity.LOST_MACHINE,
        Severity.SIGNAL,
        Severity.FROZEN,
        Severity.NEVER_JOINED,
    )
    if certain or (since_suspicion_s is not None and since_suspicion_s >= ECHO_S):
        return True, failure
    return True, None


@dataclass(frozen=True)
class Losses:
    """Failures of processes that can be replaced one by one.

    Attributes:
        fatal: One that a restart would only repeat; None: there is none.
        replaceable: All others.
    """

    fatal: ProcessFailure | None = None
    replaceable: tuple[ProcessFailure, ...] = ()

    def verdict(self) -> RunVerdict:
        """Replace what was lost; the controller's `FailureBudget` says when it is too much."""
        if self.fatal is not None:
            return RunVerdict(failure=self.fatal)
        return RunVerdict(replace=self.replaceable)


def find_losses(
    processes: Sequence[ProcessFacts], deadlines: DeadlineSpec, *, retry_start: bool = False
) -> Losses:
    """Find lost processes where each can be replaced alone.

    Args:
        processes: The replaceable ones.
        deadlines: The limits of the job.
        retry_start: Whether one that never joined is replaced as well.
    """
    lost: list[ProcessFailure] = []
    for facts in processes:
        found = diagnose(facts, deadlines)
        if found is None:
            continue
        severity, failure = found
        is_hopeless = facts.error is not None and facts.error.kind in _HOPELESS
        if is_hopeless or (severity == Severity.NEVER_JOINED and not retry_start):
            return Losses(fatal=failure)
        lost.append(failure)
    return Losses(replaceable=tuple(lost))


def diagnose(
    facts: ProcessFacts, deadlines: DeadlineSpec
) -> tuple[Severity, ProcessFailure] | None:
    """Return what is wrong with one process and how severe it is; None: nothing."""
    if facts.lost is not None and not facts.done:
        return Severity.LOST_MACHINE, ProcessFailure(
            process=facts.process,
            cause=f"{facts.process} is lost with machine {facts.machine}: {facts.lost}",
            exit_code=ExitCode.WORKER_LOST,
            lost_machine=facts.machine,
        )
    if facts.exit_code is not None and facts.exit_code < 0:
        return Severity.SIGNAL, _ended_by_signal(facts, -facts.exit_code)
    if facts.error is not None:
        severity = Severity.LOST_PEER if facts.error.kind == "PeerError" else Severity.OWN_ERROR
        return severity, ProcessFailure(
            process=facts.process,
            cause=f"{facts.who} failed: {facts.error.message}",
            exit_code=_known_code(facts.error.exit_code),
            detail=facts.error.traceback,
        )
    if facts.exit_code is not None and not (facts.done and facts.exit_code == 0):
        return Severity.SILENT_EXIT, ProcessFailure(
            process=facts.process,
            cause=f"{facts.who} ended with exit code {facts.exit_code} without saying why",
            exit_code=ExitCode.WORKER_LOST,
        )
    return _diagnose_silence(facts, deadlines) if facts.exit_code is None else None


def _diagnose_silence(
    facts: ProcessFacts, deadlines: DeadlineSpec
) -> tuple[Severity, ProcessFailure] | None:
    """Return what is wrong with a process that runs, as far as anybody knows."""
    if not facts.joined and facts.age_s > deadlines.start_s:
        return Severity.NEVER_JOINED, ProcessFailure(
            process=facts.process,
            cause=f"{facts.who} did not join within {deadlines.start_s:g} s, and no other process "
            "did meanwhile; on slow or crowded machines raise deadlines.start_s",
            exit_code=ExitCode.LAUNCH,
        )
    # Imports hold the interpreter's lock, and many at once all of a machine: such silence says
    # nothing, and a successor would only add to the load.
    is_quiet = facts.is_starting or facts.is_crowded
    limit, limit_s = "heartbeat_s", deadlines.heartbeat_s
    if is_quiet and deadlines.start_s > limit_s:
        limit, limit_s = "start_s", deadlines.start_s
    if facts.joined and facts.silent_s > limit_s:
        return Severity.FROZEN, ProcessFailure(
            process=facts.process,
            cause=f"{facts.who} is frozen: no sign of life for {facts.silent_s:.1f} s; if its "
            f"machine is only overloaded, raise deadlines.{limit}",
            exit_code=ExitCode.WORKER_LOST,
        )
    return None


def _known_code(number: int) -> ExitCode:
    """Return an exit code that a process reported; what it may not report counts as a failure."""
    try:
        code = ExitCode(number)
    except ValueError:
        return ExitCode.FAILED
    return code if code is not ExitCode.OK else ExitCode.FAILED


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Real-time signals but the first and the last have no name.
        return f"signal {number}"


def _ended_by_signal(facts: ProcessFacts, number: int) -> ProcessFailure:
    name = _signal_name(number)
    hint = "; the system may have run out of memory" if number == signal.SIGKILL else ""
    return ProcessFailure(
        process=facts.process,
        cause=f"{facts.who} was killed by {name}{hint}",
        exit_code=ExitCode.WORKER_LOST,
    )
