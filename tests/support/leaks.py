"""What a test may leave behind in this process and on this machine: nothing.

`tests/conftest.py` takes a census before every test and compares after it. Reads /proc directly,
because the comparison runs hundreds of times and must cost milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SETTLE_S = 5.0
# pytest's own, and what scikit-learn and torch set when parts of them are first imported.
_FOREIGN_VARIABLES = (
    "PYTEST_CURRENT_TEST",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TORCHINDUCTOR_CACHE_DIR",
)

# pyzmq's: it releases the memory of messages sent without a copy, as long as the process lives.
_KEPT_THREAD = "GarbageCollectorThread"


@dataclass(frozen=True)
class Census:
    """Everything that outlives a function call."""

    children: dict[int, str]
    threads: frozenset[threading.Thread]
    listening: frozenset[str]
    environment: dict[str, str]


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, so that none can get out of sight."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


_watched: set[int] = set()


@contextlib.contextmanager
def watch_children_of(pid: int) -> Iterator[None]:
    """Count the children of another process, such as a fork server, as this process's own."""
    _watched.add(pid)
    try:
        yield
    finally:
        _watched.discard(pid)


_left: set[int] = set()


def leave_to_fixture(pid: int) -> None:
    """Do not count a process that a fixture which outlives the test will end."""
    _left.add(pid)


def take_census() -> Census:
    """What there is now."""
    return Census(
        children=_children(),
        threads=frozenset(
            thread for thread in threading.enumerate() if type(thread).__name__ != _KEPT_THREAD
        ),
        listening=frozenset(_listening_sockets()),
        environment={
            key: value
            for key, value in os.environ.items()  # noqa: TID251 (compared, never used)
            if key not in _FOREIGN_VARIABLES
        },
    )


def leaks_since(before: Census) -> list[str]:
    """What came since and stays; what is just ending is given a moment to do so."""
    giving_up = time.monotonic() + _SETTLE_S
    pause = threading.Event()
    while (found := _differences(before, take_census())) and time.monotonic() < giving_up:
        pause.wait(0.02)
    return found


def _differences(before: Census, after: Census) -> list[str]:
    found = [
        f"process {pid}: {command}"
        for pid, command in after.children.items()
        if pid not in before.children
    ]
    found += [f"thread {thread.name}" for thread in after.threads - before.threads]
    found += [f"listening socket {one}" for one in after.listening - before.listening]
    for key in before.environment.keys() | after.environment.keys():
        if before.environment.get(key) != after.environment.get(key):
            found.append(f"environment variable {key}")
    return found


def _children() -> dict[int, str]:
    """Living children with their commands; dead ones are buried on the way."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    own = {str(os.getpid()), *map(str, _watched)}
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == tracker:
            continue
        with contextlib.suppress(OSError):
            state, parent, *_ = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if parent not in own or int(name) in _watched | _left:
                continue
            if state == "Z":
                # A fork server buries its own.
                if parent == str(os.getpid()):
                    os.waitpid(int(name), os.WNOHANG)
                continue
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
            found[int(name)] = command.decode(errors="replace").strip()
    return found


def _listening_sockets() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if not link.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.append(f"{link} at {copy.getsockname()}")
    return found
