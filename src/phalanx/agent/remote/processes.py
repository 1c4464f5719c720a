"""Start, poll and end the processes of one run on this machine.

Part of the agent. Every process carries the run's token in its environment, so that it is found and
killed even if its parent is gone. However a run ends, nothing of it remains.
"""

from __future__ import annotations

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
from phalanx.agent.remote.files import FileSender
from phalanx.agent.remote.marked import RUN_VARIABLE, kill_marked, start_ticks

if TYPE_CHECKING:
    from phalanx.agent.remote.outbox import Outbox

LOCK = ".supervisor"
AGENT_NAME = "phalanx-agent"
"""Marker in the command line of the agent."""
_KILL_S = 3.0
# Longer than the report of a fork server that is frozen is waited for.
_REAP_S = 8.0
# For the last lines of all processes; the controller waits longer for the end of a run.
_HOME_S = 5.0


class RunProcesses:
    """Processes of one run on this machine.

    Args:
        outbox: Takes news for the controller.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._files = FileSender(outbox.put, lambda: outbox.has_room)
        self._children: dict[str, Child] = {}
        self._fork_server = MachineForkServer()
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
        note = {
            "pid": os.getpid(),
            "started": start_ticks(os.getpid()),
            "token": order["token"],
            "made_parent": self._made_parent,
        }
        os.write(self._lock, json.dumps(note).encode())
        self._folder, self._token = folder, order["token"]
        self._files.begin(folder)
        return str(folder)

    @property
    def is_busy(self) -> bool:
        """Whether `tick` should be called sooner: a fork server has yet to answer, files wait."""
        return self._files.has_more or any(child.is_pending for child in self._children.values())

    def start(self, order: dict[str, Any]) -> int | None:
        """Start a process, or have it forked; returns its id if that is known already."""
        assert self._folder is not None, "start comes after begin"
        name = order["name"]
        variables = {**os.environ, **order["environment"]}  # noqa: TID251 (what children inherit)
        variables[RUN_VARIABLE] = self._token
        child = Child(order, variables=variables, log=self._folder / "logs" / f"{name}.log")
        child.start(self._fork_server)
        self._files.forget_end(name)
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
        giving_up = time.monotonic() + _HOME_S
        self.tick()
        while self._children and time.monotonic() < giving_up:
            self._outbox.flush(0.1)
            self.tick()
        self.clean()

    def clean(self) -> None:
        """Kill every process of the run and remove its directory."""
        kill_marked(self._token)
        if self._folder is not None:
            remove(self._folder, with_parent=self._made_parent)

    def tick(self) -> None:
        """Send some of the bytes written since the last call, and the exits."""
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        for child in self._children.values():
            child.settle()
            if child.cold_because is not None:
                self._outbox.put({"news": "cold", "name": child.name, "reason": child.cold_because})
                child.cold_because = None
        # First who has ended, then what was written: the last lines are home before the exit code.
        ended = [child for child in self._children.values() if child.poll() is not None]
        self._files.send_some()
        for child in ended:
            if self._files.is_home(child.name):
                self._tell_end(child)

    def _tell_end(self, child: Child) -> None:
        self._files.send_whole(child.name)
        self._files.forget_end(child.name)
        del self._children[child.name]
        child.close()
        code = child.poll()
        self._outbox.put({"news": "exit", "name": child.name, "serial": child.serial, "code": code})


def sweep(folder: Path, token: str) -> None:
    """Clean up for a dead or frozen agent: kill it and its processes, remove its files."""
    note: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        note = json.loads((folder / LOCK).read_text())
        # The agent first, so that it starts nothing more. A number alone may belong to another
        # process by now, even to another run's agent: the time of its start tells them apart.
        is_agent = AGENT_NAME.encode() in Path(f"/proc/{note['pid']}/cmdline").read_bytes()
        if is_agent and note["started"] == start_ticks(note["pid"]):
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
