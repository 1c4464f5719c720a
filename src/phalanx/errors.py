"""Define the exception tree of Phalanx, and the exit code of each branch.

Raise the narrowest class, with the facts as keyword arguments and a message that names the remedy.
Only `cli` turns these into exit codes; everything below it lets them pass.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

# Control characters but tab and line break, and those that turn the direction of text round.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class ExitCode(IntEnum):
    """Exit codes of the `phalanx` command; explained in docs/ref-exit-codes.md."""

    OK = 0  # finished
    FAILED = 1  # a fault that no other code names
    BAD_INPUT = 2  # job file, option or data is wrong; nothing was started
    LAUNCH = 3  # a process could not be started or did not report in time
    WORKER_LOST = 4  # a worker crashed, was killed or froze during the run
    DEADLINE = 5  # something took longer than its deadline
    STORE = 6  # the run directory, a checkpoint or the disk failed
    INTERRUPTED = 130  # Ctrl-C
    TERMINATED = 143  # SIGTERM, or the terminal was closed


class PhalanxError(Exception):
    """Base of all exceptions that Phalanx raises on purpose.

    Args:
        message: One sentence: what is wrong, where, and what would be right.
        **facts: Rank, machine, step, path and the like, kept as attributes in `facts`.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.facts)


def _rebuild(kind: type[PhalanxError], message: str, facts: dict[str, Any]) -> PhalanxError:
    return kind(message, **facts)


def printable(text: str) -> str:
    """Return text of a machine, a process or a file with nothing in it that steers a terminal.

    Lines stay lines; any other control character is shown by its number.
    """
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", plain)


class SpecError(PhalanxError):
    """A job file, a setting or an option is wrong."""

    exit_code = ExitCode.BAD_INPUT


class PlanError(PhalanxError):
    """No plan is possible: no machine fits, or none meets the deadline or the budget."""

    exit_code = ExitCode.BAD_INPUT


class DataError(PhalanxError):
    """A data set is missing, truncated or corrupt."""

    exit_code = ExitCode.BAD_INPUT


class LaunchError(PhalanxError):
    """A process could not be started, or never reported."""

    exit_code = ExitCode.LAUNCH


class PeerError(PhalanxError):
    """Another process of the run went away or broke the protocol."""

    exit_code = ExitCode.WORKER_LOST


class ProtocolError(PeerError):
    """A process sent what it must not send: malformed, misplaced, or in another's name."""


class TimeoutExpired(PhalanxError):
    """A deadline passed; `facts["activity"]` names what was waited for."""

    exit_code = ExitCode.DEADLINE


class EngineError(PhalanxError):
    """A numerical fault: a loss that is not finite, or shapes that do not match."""


class StoreError(PhalanxError):
    """A file could not be written or read back: full disk, missing checkpoint, bad checksum."""

    exit_code = ExitCode.STORE


class Interrupted(PhalanxError):
    """The user ended the run with Ctrl-C."""

    exit_code = ExitCode.INTERRUPTED


class Terminated(PhalanxError):
    """The run was ended with SIGTERM."""

    exit_code = ExitCode.TERMINATED
