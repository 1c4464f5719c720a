"""Execute orders from an ssh connection until it closes; the main module of the agent.

Orders are one JSON object per line, some followed by bytes; news (answers and events) are sent
likewise after a marker, because login scripts may print. At end of input, after too long a silence
or on a signal, the agent kills every process of the run on this machine and removes its directory,
so no exit path leaves anything behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.agent.remote import host, install, measure, outbox, processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from types import FrameType

    Order = dict[str, Any]
    Verb = Callable[[Order], object]

_TICK_S = 0.2
# While a fork is awaited or files wait: neither may come later than it has to.
_SHORT_TICK_S = 0.05
_ALIVE_S = 1.0
_END_S = 12.0
_LAST_WORDS_S = 0.5
# Orders before a run may take a while; `begin` sets the limit of a run.
_PATIENCE_S = 120.0


class Agent:
    """Agent's end of one connection."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._limit_s = _PATIENCE_S
        self._said_alive = 0.0
        self._ending = threading.Lock()
        self._outbox = outbox.Outbox(sys.stdout.fileno())
        self._run = processes.RunProcesses(self._outbox)
        self._verbs = self._quick_verbs()
        self._slow_verbs = _slow_verbs(measure.Listener())

    def _quick_verbs(self) -> dict[str, Verb]:
        """Return the orders that are executed immediately and in sequence."""
        run = self._run
        return {
            "clock": lambda order: time.time(),
            "resolve": lambda order: host.numeric_address(order["address"]),
            "ports": lambda order: host.free_ports(order["address"], order["count"]),
            "memory": lambda order: host.free_memory(),
            "begin": self._begin,
            "start": run.start,
            "kill": lambda order: run.kill(order["name"]),
            "stop": lambda order: run.stop(order["grace_s"]),
            "sweep": lambda order: processes.sweep(_path(order["folder"]), order["token"]),
            "end": lambda order: run.finish(),
        }

    def serve(self) -> None:
        """Execute orders until the input ends."""
        # Handlers before the hello: from then on processes may be started.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        # Ctrl-C at a terminal reaches all processes that share it; only the controller decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._outbox.start()
        self._outbox.put({"news": "hello", **host.introduce()})
        threading.Thread(target=self._read, args=(sys.stdin.buffer,), daemon=True).start()
        threading.Thread(target=self._guard, daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                tick_s = _SHORT_TICK_S if self._run.is_busy else _TICK_S
                order = self._orders.get(timeout=tick_s)
                if order is None:
                    self._end_all()
                else:
                    self._obey(order)
            self._run.tick()
            if time.monotonic() - self._said_alive >= _ALIVE_S:
                self._said_alive = time.monotonic()
                self._outbox.put({"news": "alive"})

    def _read(self, stream: BufferedReader) -> None:
        while line := stream.readline():
            self._heard = time.monotonic()
            order = json.loads(line)
            content = bytearray()
            while len(content) < order.get("bytes", 0):
                part = stream.read1(min(1 << 16, order["bytes"] - len(content)))
                if not part:
                    break
                content += part
                # A large file over a slow link is not silence.
                self._heard = time.monotonic()
            if order["do"] != "ping":
                order["content"] = bytes(content)
                self._orders.put(order)
        self._orders.put(None)
        # The main thread may be busy with an order.
        time.sleep(_TICK_S * 2)
        self._end_all()

    def _guard(self) -> None:
        """End everything after too long a silence; a network may fail without an end of input."""
        while True:
            time.sleep(_TICK_S)
            silent_s = time.monotonic() - self._heard
            if silent_s > self._limit_s:
                # Read by a controller that was suspended, when it wakes up.
                self._outbox.put({"news": "ending", "silent_s": silent_s})
                self._end_all()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._end_all()

    def _end_all(self) -> None:
        """Kill all processes, remove all files, and exit."""
        if not self._ending.acquire(blocking=False):
            # Another thread is cleaning up and will exit; this one must not return meanwhile.
            time.sleep(_END_S)
        self._run.clean()
        self._outbox.flush(_LAST_WORDS_S)
        os._exit(0)

    def _obey(self, order: Order) -> None:
        if order["do"] in self._slow_verbs:
            # In a thread, so that processes are still polled and heartbeats still sent meanwhile.
            action = self._slow_verbs[order["do"]]
            threading.Thread(target=self._answer, args=(order, action), daemon=True).start()
            return
        self._answer(order, lambda order: self._verbs[order["do"]](order))
        if order["do"] == "end":
            self._outbox.flush(_END_S)
            os._exit(0)

    def _answer(self, order: Order, action: Verb) -> None:
        try:
            answer = {"ok": action(order)}
        except Exception as error:  # the process boundary: the caller gets the error, and may go on
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._outbox.put({"news": "answer", "id": order["id"], **answer})

    def _begin(self, order: Order) -> str:
        folder = self._run.begin(order)
        # Only now: from here on processes run that must not outlive the connection.
        self._limit_s = order["limit_s"]
        return folder


def _slow_verbs(listener: measure.Listener) -> dict[str, Verb]:
    """Return the orders that take seconds; each runs in a thread."""
    return {
        "describe": lambda order: host.describe(order["workdir"], order["quick"]),
        "speed": lambda order: measure.measure_speed(order["seconds"]),
        "listen": lambda order: listener.open(order["token"]),
        "hush": lambda order: listener.close(),
        "contact": lambda order: measure.contact(
            order["hosts"], order["port"], order["token"], order["seconds"]
        ),
        "reach": lambda order: host.reach(order["targets"]),
        "holds": lambda order: install.is_complete(_path(order["path"])),
        "unpack": lambda order: install.unpack(order["content"], _path(order["path"])),
        "versions": lambda order: install.versions(order["python"], order["names"]),
        "build": lambda order: install.build(_path(order["root"]), order["versions"]),
        "run": install.run_command,
    }


def _path(text: str) -> Path:
    return Path(text).expanduser()


def main() -> None:
    """Serve this connection; called after all modules are loaded."""
    # Code, data, records and logs of a run are nobody else's business.
    os.umask(0o077)
    Agent().serve()
