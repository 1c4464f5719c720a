"""Define how a run ends before its time: the errors, and the sentence that says why."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

from phalanx.errors import ExitCode, Interrupted, PhalanxError, Terminated


class RunFailed(PhalanxError):
    """A run ended before its time; the message is the cause, `exit_code` its kind."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message, **facts)
        code = facts.get("exit_code", ExitCode.FAILED)
        assert isinstance(code, int)
        self.exit_code = ExitCode(code)


def unforeseen(error: Exception, log: Path) -> RunFailed:
    """Make the error that ends a run because of one that nobody foresaw; the log explains it."""
    return RunFailed(
        f"{describe_end(error)}; please report it together with {log}, which holds the traceback",
        exit_code=ExitCode.FAILED,
    )


def describe_end(error: BaseException) -> str:
    """Describe the end of a run in one sentence; what no one foresaw is named as such."""
    if isinstance(error, PhalanxError):
        return str(error)
    return f"a fault of Phalanx itself: {type(error).__name__}: {error}"


def stopped(run: Path) -> Interrupted:
    """Make the error that ends a run because a user asked for its end."""
    return Interrupted(f"stopped on request; {_go_on(run)}")


def _go_on(run: Path) -> str:
    return f"continue with `phalanx train --resume {shlex.quote(str(run))}`"


def interruption(number: int, run: Path) -> PhalanxError:
    """Make the error that ends a run because of a signal."""
    go_on = _go_on(run)
    if number == signal.SIGINT:
        return Interrupted(f"interrupted by Ctrl-C; {go_on}")
    if number == signal.SIGHUP:
        return Terminated(f"its terminal was closed; {go_on}")
    return Terminated(f"ended by SIGTERM; {go_on}")
