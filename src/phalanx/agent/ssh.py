"""Build ssh commands to a machine by the system's OpenSSH, and classify their failures.

The user's ssh config applies, jump hosts and aliases included; a pool may name another file. ssh
never prompts (BatchMode): a password or new host key is refused with ssh's own reason. Builds
commands and parses messages; `session` starts the processes.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from typing_extensions import override

from phalanx.errors import LaunchError
from phalanx.spec.machine import MachineSpec

FaultKind = Literal["unknown_host", "key", "host_key", "unreachable", "python", "slow", "broken"]
MISTAKES: frozenset[FaultKind] = frozenset({"unknown_host", "key", "host_key"})
"""Kinds that the user fixes in a file: they end a command as bad input does."""

CONNECT_S = 10
_NOISE = re.compile(
    r"^(Warning: |warning: |debug\d|mux_|ControlSocket |Connection to .* closed"
    r"|kex_exchange.*banner|Pseudo-terminal|\*\* |\s*$)"
)
_KINDS: tuple[tuple[str, FaultKind], ...] = (
    (r"could not resolve hostname", "unknown_host"),
    (r"host key verification failed|remote host identification has changed", "host_key"),
    (r"no .* host key is known", "host_key"),
    (r"permission denied|too many authentication failures|no such identity", "key"),
    (r"unprotected private key|identity file .* not accessible", "key"),
    (r"connection timed out|connection refused|no route to host|network is unreach", "unreachable"),
    (r"connection closed|connection reset|banner exchange|timeout, server", "unreachable"),
    (r"not found|no such file or directory|modulenotfounderror", "python"),
)
_ADVICE: dict[FaultKind, str] = {
    "unknown_host": "check 'host' or the alias in your ssh config",
    "key": "check 'user' and 'key', and that the key is installed there (`ssh-copy-id`)",
    "host_key": "log in once with `ssh` and check the fingerprint, or mend known_hosts",
    "unreachable": "check that it is on, its network and its ssh server",
    "python": "check 'python' of this machine in the pool file",
    "slow": "it may be overloaded",
    "broken": "try the same with `ssh` by hand",
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a machine cannot be used."""

    machine: str
    kind: FaultKind
    reason: str
    """One sentence, by ssh or the machine itself."""


class MachineFault(LaunchError):
    """A machine could not be reached, or stopped answering; `fault` holds the reason."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.fault: Fault = facts["fault"]


@dataclass(frozen=True)
class SshRoute:
    """Parameters of the ssh connection to one machine.

    Attributes:
        machine: Host, user, port and key.
        config: An ssh config file; None: the user's own.
        connect_s: Timeout of the connection in seconds.
    """

    machine: MachineSpec
    config: str | None = None
    connect_s: int = CONNECT_S

    def command(self, remote: str) -> list[str]:
        """Return the local command that runs `remote` in the login shell of the machine."""
        machine = self.machine
        options = [
            "BatchMode=yes",
            f"ConnectTimeout={self.connect_s}",
            # Detect a dead connection within 15 s instead of never.
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "ClearAllForwardings=yes",
            # The user's config may forward the agent; a machine of a pool has no use for it.
            "ForwardAgent=no",
        ]
        if machine.key is not None:
            options += [f"IdentityFile={machine.key}", "IdentitiesOnly=yes"]
        if machine.agent is True:
            options += ["IdentityFile=none"]
        if machine.agent is False:
            options += ["IdentityAgent=none"]
        command = ["ssh", "-T", "-x"]
        if self.config is not None:
            command += ["-F", self.config]
        if machine.user is not None:
            command += ["-l", machine.user]
        if machine.port is not None:
            command += ["-p", str(machine.port)]
        for option in options:
            command += ["-o", option]
        return [*command, "--", machine.host, remote]

    def python(self, *arguments: str) -> str:
        """Return the remote command that runs the machine's interpreter with these arguments."""
        return " ".join(["exec", quote_path(self.machine.python), *map(shlex.quote, arguments)])


@dataclass(frozen=True)
class LocalRoute(SshRoute):
    """Route to this machine under a machine's name: a shell in place of ssh."""

    @override
    def command(self, remote: str) -> list[str]:
        return ["sh", "-c", remote]


def quote_path(path: str) -> str:
    """Quote a path for the remote shell; a leading `~` still expands to the home directory."""
    home, slash, rest = path.partition("/")
    if home.startswith("~") and (home == "~" or home[1:].isalnum()):
        return home + slash + (shlex.quote(rest) if rest else "")
    return shlex.quote(path)


def explain(machine: MachineSpec, said: str, exit_code: int | None) -> Fault:
    """Classify an error message of ssh or the remote shell as a fault.

    Args:
        machine: The machine concerned.
        said: Standard error of ssh.
        exit_code: Of ssh; None if it was killed after a timeout.
    """
    lines = [line.strip() for line in said.splitlines() if not _NOISE.match(line)]
    kind: FaultKind = "slow" if exit_code is None else "broken"
    reason = lines[-1] if lines else f"ssh ended with code {exit_code}"
    # A changed host key prints a long banner; prefer the line that matches the kind.
    for pattern, found in _KINDS:
        match = next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None)
        # Exit codes below 255 are the remote command's: ssh itself succeeded.
        is_remote = exit_code not in (255, None)
        if match is not None and is_remote == (found == "python"):
            kind, reason = found, match
            break
    if exit_code is None and not lines:
        reason = "no answer in time"
    name = machine.title
    return Fault(machine=name, kind=kind, reason=f"{reason.rstrip('.')}; {_ADVICE[kind]}")
