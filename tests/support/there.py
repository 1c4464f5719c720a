"""Another machine, played by this one: a route whose commands run here, without ssh."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from phalanx.agent.piped import PipedLine
from phalanx.agent.session import Session
from phalanx.agent.ssh import LocalRoute
from phalanx.spec.machine import MachineSpec


@dataclass(frozen=True)
class HereRoute(LocalRoute):
    """Runs what would be run over ssh in a shell of this machine.

    Attributes:
        through_cat: Put a process between the two ends that can be frozen, as a network can be.
    """

    through_cat: bool = False

    @override
    def command(self, remote: str) -> list[str]:
        return ["sh", "-c", f"cat | ({remote})" if self.through_cat else remote]


def here(name: str = "m", *, workdir: Path | None = None, through_cat: bool = False) -> HereRoute:
    """A route to this machine under another name."""
    spec = MachineSpec(
        host=name, python=sys.executable, workdir=str(workdir) if workdir else "~/phalanx"
    )
    return HereRoute(spec, through_cat=through_cat)


def process_of(session: Session) -> subprocess.Popen[bytes]:
    """The command that carries a session's line; here it becomes the agent itself."""
    assert isinstance(session.line, PipedLine)
    assert session.line.process is not None
    return session.line.process


def children_of(pid: int) -> dict[int, str]:
    """The processes that a process has started, with their commands."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(_stat(entry)[1]) == pid:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be buried."""
    try:
        return _stat(Path(f"/proc/{pid}"))[0] != "Z"
    except OSError:
        return False


def _stat(entry: Path) -> list[str]:
    return (entry / "stat").read_text().rpartition(")")[2].split()
