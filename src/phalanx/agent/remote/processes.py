"""Start, poll and end the processes of one run on this machine, and send their files.

Part of the agent. Every process carries the run's token in its environment, so that it is found and
killed even if its parent is gone. However a run ends, nothing of it remains.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent.remote.child import Child, MachineForkServer

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_VARIABLE = "PHALANX_RUN"
"""Environment variable that identifies the processes of a run and their children."""
LOCK = ".supervisor"
AGENT_NAME = "phalanx-agent"
"""Marker in the command line of the agent."""
_KILL_S = 3.0
# Longer than the report of a fork server that is frozen is waited for.
_REAP_S = 8.0
_MAX_CHUNK_BYTES = 1 << 17
# Files that grow while a process runs, and files written once when it ends.
_GROWING = ("events", "logs")
_WHOLE = ("profile",)


class RunProcesses:
    """Processes of one run on this machine.

    Args:
        send: Sends one item of news to the controller.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._children: dict[str, Child] = {}
        self._fork_server = MachineForkServer()
        self._sent: dict[Path, int] = {}
        self._folder: Path | None = None
        self._lock: int | None = None
        self._made_parent = False
        self._token = ""
        self._kill_at: float | None = None

    def begin(self, order: dict[str, Any]) -> str:
        """Create the run directory on this machine; directories of abandoned runs are removed."""
        folder = Path(order["folder"]).expanduser()
        self._made_parent = not folder.parent.exists()
        folder.parent.mkdir(parents=True, exist_ok=True)
        for other in folder.parent.glob(f"*@{order['machine']}"):
            _sweep_abandoned(other)
        for part in ("events", "logs", "checkpoints"):
            (folder / part).mkdir(parents=True)
        # Held until this program ends: a directory whose lock is free was abandoned.
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        note = {"pid": os.getpid(), "token": order["token"], "made_parent": self._made_parent}
        os.write(self._lock, json.dumps(note).encode())
        self._folder, self._token = folder, order["token"]
        return str(folder)

    @property
    def awaits_forks(self) -> bool:
        """Whether a fork server has yet to answer, so that `tick` should be called sooner."""
        return any(child.is_pending for child in self._children.values())

    def start(self, order: dict[str, Any]) -> int | None:
        """Start a process, or have it forked; returns its id if that is known already."""
        assert self._folder is not None, "start comes after begin"
        name = order["name"]
        variables = {**os.environ, **order["environment"]}  # noqa: TID251 (what children inherit)
        variables[RUN_VARIABLE] = self._token
        child = Child(order, variables=variables, log=self._folder / "logs" / f"{name}.log")
        child.start(self._fork_server)
        self._children[name] = child
        return child.pid

    def kill(self, name: str) -> None:
        """Kill a process, and wait for its end."""
        child = self._children.get(name)
        if child is not None:
            child.signal(signal.SIGKILL)
            child.wait(_REAP_S)

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to every process; `tick` kills those left after the grace period."""
        for child in self._children.values():
            child.signal(signal.SIGTERM)
            # A stopped process handles SIGTERM only after SIGCONT.
            child.signal(signal.SIGCONT)
        self._kill_at = time.monotonic() + grace_s

    def finish(self) -> None:
        """Kill all processes, send the remaining news, and remove all files."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        # The fork server is marked too, and has first to tell how its processes ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            for child in self._children.values():
                child.wait(_KILL_S)
        kill_marked(self._token)
        for child in self._children.values():
            child.wait(_KILL_S)
        self.tick()
        self.clean()

    def clean(self) -> None:
        """Kill every process of the run and remove its directory."""
        kill_marked(self._token)
        if self._folder is not None:
            remove(self._folder, with_parent=self._made_parent)

    def tick(self) -> None:
        """Send the bytes written since the last call, and the exits."""
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        for child in self._children.values():
            child.settle()
            if child.cold_because is not None:
                self._send({"news": "cold", "name": child.name, "reason": child.cold_because})
                child.cold_because = None
        # First who has ended, then what was written: the last lines are home before the exit code.
        ended = [child for child in self._children.values() if child.poll() is not None]
        self._send_files()
        for child in ended:
            self._send_whole(child.name)
            del self._children[child.name]
            child.close()
            code = child.poll()
            self._send({"news": "exit", "name": child.name, "serial": child.serial, "code": code})

    def _send_files(self) -> None:
        """Send the bytes appended to the growing files."""
        if self._folder is None:
            return
        for part in _GROWING:
            for path in sorted((self._folder / part).glob("*")):
                while self._send_more(path):
                    pass

    def _send_more(self, path: Path) -> bool:
        """Send the next chunk of a file; return whether there may be more."""
        assert self._folder is not None
        start = self._sent.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            chunk = file.read(_MAX_CHUNK_BYTES)
        if chunk:
            self._sent[path] = start + len(chunk)
            content = base64.b64encode(chunk).decode()
            where = str(path.relative_to(self._folder))
            self._send({"news": "more", "path": where, "content": content})
        return len(chunk) == _MAX_CHUNK_BYTES

    def _send_whole(self, name: str) -> None:
        """Send the files that a process writes once when it ends."""
        assert self._folder is not None
        for part in _WHOLE:
            for path in (self._folder / part).glob(f"{name}.*"):
                content = base64.b64encode(path.read_bytes()).decode()
                where = str(path.relative_to(self._folder))
                self._send({"news": "whole", "path": where, "content": content})


def sweep(folder: Path, token: str) -> None:
    """Clean up for a dead or frozen agent: kill it and its processes, remove its files."""
    note: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        note = json.loads((folder / LOCK).read_text())
        # The agent first, so that it starts nothing more; its pid may have been reused.
        if AGENT_NAME.encode() in Path(f"/proc/{note['pid']}/cmdline").read_bytes():
            os.kill(note["pid"], signal.SIGKILL)
    kill_marked(token)
    remove(folder, with_parent=note.get("made_parent", False))


def _sweep_abandoned(folder: Path) -> None:
    """Remove the directory of an earlier run whose agent was killed."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return
    try:
        # Fails while the agent of that run is alive.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note = json.loads(os.read(descriptor, 4096))
    except (OSError, ValueError):
        return
    finally:
        os.close(descriptor)
    kill_marked(note["token"])
    remove(folder)


def kill_marked(token: str) -> None:
    """Kill every process with this token in its environment, until none is left."""
    if not token:
        return  # no run has begun
    giving_up = time.monotonic() + _KILL_S
    # Repeated, because a process may fork between listing and killing.
    while (found := _marked(token)) and time.monotonic() < giving_up:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _marked(token: str) -> list[int]:
    mark = f"{RUN_VARIABLE}={token}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                # A zombie has no environment.
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def remove(folder: Path, *, with_parent: bool = False) -> None:
    """Remove a directory, and its parent if that was created for it and is empty."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        # A dying process has written a file meanwhile.
        time.sleep(0.05)
    if with_parent:
        with contextlib.suppress(OSError):  # others are using it
            folder.parent.rmdir()
