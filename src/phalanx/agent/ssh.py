"""Build ssh commands to a machine by the system's OpenSSH, and classify their failures.

The user's ssh config applies, jump hosts and aliases included; a pool may name another file. ssh
never prompts (BatchMode): a password or new host key is refused with ssh's own reason. Builds
commands and parses messages; `piped` starts the processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from typing_extensions import override

from phalanx.agent.line import Fault, FaultKind
from phalanx.agent.piped import CommandRoute, Patterns, matching_line
from phalanx.spec.machine import MachineSpec

_NOISE = re.compile(
    r"^(Warning: |warning: |debug\d|mux_|ControlSocket |Connection to .* closed"
    r"|kex_exchange.*banner|Pseudo-terminal|\*\* |\s*$)"
)
_KINDS: Patterns = (
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


@dataclass(frozen=True)
class SshRoute(CommandRoute):
    """Parameters of the ssh connection to one machine.

    Attributes:
        config: An ssh config file; None: the user's own.
    """

    config: str | None = None

    @override
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

    @override
    def explain(self, said: str, exit_code: int | None) -> Fault:
        return explain(self.machine, said, exit_code)


@dataclass(frozen=True)
class LocalRoute(SshRoute):
    """Route to this machine under a machine's name: a shell in place of ssh."""

    @override
    def command(self, remote: str) -> list[str]:
        return ["sh", "-c", remote]


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
        match = matching_line(lines, pattern)
        # Exit codes below 255 are the remote command's: ssh itself succeeded.
        is_remote = exit_code not in (255, None)
        if match is not None and is_remote == (found == "python"):
            kind, reason = found, match
            break
    if exit_code is None and not lines:
        reason = "no answer in time"
    name = machine.title
    return Fault(machine=name, kind=kind, reason=f"{reason.rstrip('.')}; {_ADVICE[kind]}")
