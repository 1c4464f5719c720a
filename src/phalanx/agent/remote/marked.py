"""Find and kill every process of a run by the mark in its environment.

Part of the agent; runs on this machine use it as well. Children inherit the mark wherever they move
in the process tree, so a helper that left its session is found too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

RUN_VARIABLE = "PHALANX_RUN"
"""Environment variable that identifies the processes of a run and their children."""
_KILL_S = 3.0


def kill_marked(*tokens: str) -> None:
    """Kill every process with one of these tokens in its environment, until none is left."""
    marks = {f"{RUN_VARIABLE}={token}".encode() for token in tokens if token}
    if not marks:
        return  # no run has begun
    giving_up = time.monotonic() + _KILL_S
    # Repeated, because a process may fork between listing and killing.
    while (found := _marked(marks)) and time.monotonic() < giving_up:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; with its number it is unique."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in brackets may hold spaces; field 22 of all is the 20th behind it.
    return int(stat.rpartition(")")[2].split()[19])


def _marked(marks: set[bytes]) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                # A zombie has no environment.
                if not marks.isdisjoint(Path(f"/proc/{name}/environ").read_bytes().split(b"\0")):
                    found.append(int(name))
    return found
