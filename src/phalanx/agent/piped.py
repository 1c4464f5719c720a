"""Carry a line over the input and output of a local command, such as ssh, srun or kubectl.

One child process per line. It has a separate process session, so that Ctrl-C ends the controller
but not the line. If this process dies, the child's input closes and the agent ends everything on
its side. A `CommandRoute` builds the command and classifies its failures.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, Self

from typing_extensions import override

from phalanx.agent.line import LOADER, AgentLine, Fault, FaultKind
from phalanx.errors import printable
from phalanx.spec.machine import MachineSpec

CONNECT_S = 10
END_S = 3.0
_READ_BYTES = 1 << 16
_MAX_MESSAGE_BYTES = 1 << 20

Patterns = Sequence[tuple[str, FaultKind]]
"""What a command says, as regular expressions, and which kind of fault that is."""


@dataclass(frozen=True)
class CommandRoute(ABC):
    """Way to a machine by a local command that runs a shell there.

    Attributes:
        machine: The machine, with its interpreter.
        connect_s: Timeout of the connection in seconds.
    """

    machine: MachineSpec
    connect_s: int = field(default=CONNECT_S, kw_only=True)

    @abstractmethod
    def command(self, remote: str) -> list[str]:
        """Return the local command that runs `remote` in a shell of the machine."""

    @abstractmethod
    def explain(self, said: str, exit_code: int | None) -> Fault:
        """Classify an error message of the command or the remote shell as a fault.

        Args:
            said: Standard error of the command.
            exit_code: Of the command; None if it was killed after a timeout.
        """

    def python(self, *arguments: str) -> str:
        """Return the remote command that runs the machine's interpreter with these arguments."""
        return " ".join(["exec", quote_path(self.machine.python), *map(shlex.quote, arguments)])

    def line(self) -> PipedLine:
        """Make a line; its command is not started yet."""
        return PipedLine(self)

    def again(self, connect_s: int) -> Self | None:
        """Return the same way with a shorter timeout; None: there is no second attempt."""
        return replace(self, connect_s=connect_s)


class PipedLine(AgentLine):
    """Line over the input and output of a child process.

    Args:
        route: Builds its command.
    """

    def __init__(self, route: CommandRoute) -> None:
        self._route = route
        self.process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @override
    def open(self) -> None:
        # A file, not a pipe: unread messages must not block the command.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self.process = subprocess.Popen(
            self._route.command(self._route.python("-u", "-c", LOADER)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )

    @override
    def write(self, data: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    @override
    def read(self) -> bytes:
        assert self.process is not None
        # A buffered reader, whose `read1` returns what is there.
        stream: Any = self.process.stdout
        part: bytes = stream.read1(_READ_BYTES)
        return part

    @override
    def end_input(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    @override
    def wait(self, limit_s: float) -> bool:
        if self.process is None:
            return True
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @override
    def cut(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @override
    def close(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        if self._stderr is not None:
            self._stderr.close()

    @override
    def explain(self, *, has_answered: bool) -> Fault:
        assert self.process is not None
        code = self.process.poll()
        said = self._said()
        if not has_answered:
            return self._route.explain(said, code)
        # After the hello the command's message is of little help: the machine was there.
        name = self._route.command("")[0]
        last = said.strip().splitlines()[-1:] or [f"{name} ended with code {code}"]
        reason = f"the connection to it broke off ({last[0].strip().rstrip('.')})"
        return Fault(machine=self._route.machine.title, kind="broken", reason=reason)

    def _said(self) -> str:
        assert self._stderr is not None
        self._stderr.seek(0)
        return printable(self._stderr.read(_MAX_MESSAGE_BYTES).decode(errors="replace"))


@dataclass(frozen=True)
class FailureText:
    """What a command of an engine says when it fails.

    Attributes:
        noise: Matches lines that say nothing about the cause.
        kinds: Patterns of causes, the clearest first.
        advice: What helps, by kind.
        otherwise: What helps against any other kind.
    """

    noise: re.Pattern[str]
    kinds: Patterns
    advice: Mapping[FaultKind, str]
    otherwise: str

    def explain(self, machine: str, command: str, said: str, exit_code: int | None) -> Fault:
        """Classify what a command said; arguments as in `CommandRoute.explain`."""
        lines = [line.strip() for line in said.splitlines() if not self.noise.match(line)]
        kind: FaultKind = "slow" if exit_code is None else "broken"
        usual = "no answer in time" if exit_code is None else f"ended with code {exit_code}"
        reason = lines[-1] if lines else f"{command}: {usual}"
        for pattern, found in self.kinds:
            match = matching_line(lines, pattern)
            if match is not None:
                kind, reason = found, match
                break
        reason = reason.removeprefix(f"{command}: ").removeprefix("error: ").rstrip(".")
        advice = self.advice.get(kind, self.otherwise)
        return Fault(machine=machine, kind=kind, reason=f"{reason}; {advice}")


def quote_path(path: str) -> str:
    """Quote a path for the remote shell; a leading `~` still expands to the home directory."""
    home, slash, rest = path.partition("/")
    if home.startswith("~") and (home == "~" or home[1:].isalnum()):
        return home + slash + (shlex.quote(rest) if rest else "")
    return shlex.quote(path)


def matching_line(lines: Sequence[str], pattern: str) -> str | None:
    """Return the first line that a pattern is found in; None: there is none."""
    return next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None)
