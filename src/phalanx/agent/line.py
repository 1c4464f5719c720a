"""Define the line to the agent of one machine: bytes there and back, whatever carries them.

A `Route` knows how to make a line to its machine. `piped` is the line over a local command such as
ssh, whose input and output are the agent's. `session` speaks to the agent over any line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Protocol

import msgspec

from phalanx.agent.remote.processes import AGENT_NAME
from phalanx.errors import LaunchError
from phalanx.spec.machine import MachineSpec

FaultKind = Literal["unknown_host", "key", "host_key", "unreachable", "python", "slow", "broken"]
MISTAKES: frozenset[FaultKind] = frozenset({"unknown_host", "key", "host_key"})
"""Kinds that the user fixes in a file: they end a command as bad input does."""

# Reads the program's length from the first line and runs it; the rest of the input is orders. One
# line, because some login shells do not accept a line break inside quotes.
LOADER = (
    "import sys; n = int(sys.stdin.buffer.readline()); "
    f'exec(compile(sys.stdin.buffer.read(n), "{AGENT_NAME}", "exec"))'
)
"""Program for `python -c` on the machine: receives the agent over its input and becomes it."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a machine cannot be used."""

    machine: str
    kind: FaultKind
    reason: str
    """One sentence, by what carries the line or the machine itself."""


class MachineFault(LaunchError):
    """A machine could not be reached, or stopped answering; `fault` holds the reason."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.fault: Fault = facts["fault"]


def machine_fault(fault: Fault) -> MachineFault:
    """Build the error of a fault."""
    return MachineFault(f"{fault.machine}: {fault.reason}", machine=fault.machine, fault=fault)


class AgentLine(ABC):
    """Carry bytes to the agent of one machine and back.

    One thread writes, another reads; any may call `cut` and `wait`. A line is used once.
    """

    @abstractmethod
    def open(self) -> None:
        """Connect to a fresh `LOADER` on the other side.

        Raises:
            MachineFault: Nothing is there to connect to.
        """

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes; waits while the other side takes none.

        Raises:
            OSError: The other side is gone, or the line was cut.
        """

    @abstractmethod
    def read(self) -> bytes:
        """Wait for bytes of the agent's output; empty: the line is over."""

    @abstractmethod
    def end_input(self) -> None:
        """Close the agent's input after all that was written, which ends the agent."""

    @abstractmethod
    def wait(self, limit_s: float) -> bool:
        """Wait for the end of the other side; returns whether it came."""

    @abstractmethod
    def cut(self) -> None:
        """Break the line at once: `read` returns nothing more and `write` raises."""

    @abstractmethod
    def close(self) -> None:
        """Release what the line holds; after `cut`, and when neither thread uses it any more."""

    @abstractmethod
    def explain(self, *, has_answered: bool) -> Fault:
        """Say why the line is over, or why no agent has answered on it.

        Args:
            has_answered: Whether the agent had said hello.
        """


class Route(Protocol):
    """Way to one machine."""

    @property
    def machine(self) -> MachineSpec:
        """Return the machine that it leads to."""

    def line(self) -> AgentLine:
        """Make a line; it is not open yet."""

    def again(self, connect_s: int) -> Route | None:
        """Return a route for one short attempt after the first line broke; None: there is none."""
