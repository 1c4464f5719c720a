"""Identify a process beyond reboots and reused pids, also on another machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one machine; equal only if it is the same one.

    Attributes:
        host: Name of the machine.
        boot_id: Of the running system: a machine that was started again has another.
        pid: Number of the process.
        started: When the process started, in clock ticks since boot: a reused pid has another.
    """

    host: str
    boot_id: str
    pid: int
    started: int

    @classmethod
    def here(cls) -> ProcessIdentity:
        """Return the identity of the calling process."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(), boot_id=boot_id(), pid=pid, started=start_ticks(pid) or 0
        )

    @property
    def is_on_this_system(self) -> bool:
        """Whether it belongs to the running system of this machine, so that it can be looked up."""
        return self.boot_id == boot_id()

    @property
    def is_alive_here(self) -> bool:
        """Whether it runs on this system; a zombie, or another process with its pid, does not."""
        return self.is_on_this_system and start_ticks(self.pid) == self.started


def boot_id() -> str:
    """Return the random number that the kernel drew when it started; empty: unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None: it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program comes first, in brackets, and may hold anything.
    fields = text[text.rindex(")") + 2 :].split()
    state, ticks = fields[0], int(fields[19])
    return None if state in "ZX" else ticks
