"""Send the agent to one machine over a line, send it orders and receive its news.

One line per machine, as long as the session: an ssh login, or whatever else the route makes. If
this process dies, the agent's input ends and it ends everything on its side; if the network fails,
pings stop, with the same result. The receiving thread never writes to a disk: what comes is noted
as heard when it comes. `launch.ssh` handles the news of a run.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from phalanx.agent.line import Fault, FaultKind, Route, machine_fault
from phalanx.agent.remote import MODULES
from phalanx.agent.remote.outbox import MARKER
from phalanx.agent.remote.processes import AGENT_NAME
from phalanx.errors import LaunchError, printable

_log = logging.getLogger(__name__)

News = dict[str, Any]

PING_S = 1.0
_HELLO_S = 60.0
_CLOSE_S = 3.0
# Several times the longest message of an agent, a chunk of a file.
_MAX_LINE_BYTES = 1 << 20
_PACKAGE = "phalanx.agent.remote"
# Makes the modules in memory, so that a Phalanx that is installed there is never mixed in.
_BOOT = """\
import sys, types
package = sys.modules["{package}"] = types.ModuleType("{package}")
for name, source in {modules!r}:
    module = sys.modules[name] = types.ModuleType(name)
    setattr(package, name.rpartition(".")[2], module)
    exec(compile(source, "{agent}/" + name, "exec"), vars(module))
module.main()
"""


@cache
def agent_program() -> bytes:
    """Return the source of the agent as one program."""
    modules = []
    for name in MODULES:
        folder, _, stem = name.rpartition(".")
        modules.append((name, resources.files(folder).joinpath(f"{stem}.py").read_text("utf-8")))
    return _BOOT.format(package=_PACKAGE, modules=modules, agent=AGENT_NAME).encode()


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """First message of an agent."""

    pid: int
    host: str
    home: str
    python: tuple[int, int, int]
    executable: str
    cpus: list[int]
    came_from: str
    """Address of this machine as that one sees it; empty: not reported."""


class Session:
    """Connection to the agent of one machine; `open` first, `close` on every exit path.

    Args:
        route: The way to the machine.
        on_news: Called by the session's thread with output and exits of processes on the machine;
            while it blocks nothing is heard of the machine.
    """

    def __init__(self, route: Route, on_news: Callable[[News], None] = lambda news: None) -> None:
        self.machine = route.machine.title
        self.route = route
        self.line = route.line()
        self.on_news = on_news
        self.fault: Fault | None = None
        """Why the connection is gone; None: it is open."""
        self._hello: Future[AgentInfo] = Future()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.heard_s = time.monotonic()
        """When the last bytes came, on this process's monotonic clock."""
        self._ended_silent_s: float | None = None
        self._closing = False
        self._threads: list[threading.Thread] = []

    def open(self) -> AgentInfo:
        """Log in and start the agent.

        Raises:
            MachineFault: The machine cannot be reached, or did not answer in time.
        """
        source = agent_program()
        self.line.open()
        self._to_send.put(b"%d\n" % len(source) + source)
        for name, target in (("from", self._receive), ("to", self._send)):
            thread = threading.Thread(target=target, name=f"{name}-{self.machine}", daemon=True)
            thread.start()
            self._threads.append(thread)
        try:
            return self._hello.result(_HELLO_S)
        except FutureTimeout:
            raise machine_fault(self.line.explain(has_answered=False)) from None

    def tell(self, order: dict[str, Any], content: bytes = b"") -> Future[Any]:
        """Send an order; the future receives its answer or a `LaunchError`."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        # Registered before it is sent, so that the answer always finds its future.
        self._asked[number] = future
        if self.fault is not None:
            # `give_up` may find and fail it at the same time.
            with contextlib.suppress(InvalidStateError):
                future.set_exception(machine_fault(self.fault))
            return future
        line = msgspec.json.encode({**order, "id": number, "bytes": len(content)})
        self._to_send.put(line + b"\n" + content)
        return future

    def ask(self, order: dict[str, Any], limit_s: float, content: bytes = b"") -> Any:
        """Send an order and wait for its answer.

        Raises:
            MachineFault: The connection is gone, or the machine did not answer in time.
            LaunchError: The machine could not carry out the order.
        """
        return self.wait(self.tell(order, content), limit_s)

    def give_up(self, reason: str, kind: FaultKind = "broken") -> None:
        """Mark the machine as lost; all pending orders fail."""
        if self.fault is None:
            self.fault = Fault(machine=self.machine, kind=kind, reason=reason)
        self.line.cut()
        for future in (self._hello, *self._asked.values()):
            # An order that `tell` refuses at this moment is failed there already.
            with contextlib.suppress(InvalidStateError):
                future.set_exception(machine_fault(self.fault))

    def close(self) -> None:
        """Close the connection, which also ends the agent."""
        self._closing = True
        # Ends the agent's input after all queued orders; the line is cut only if the agent does not
        # end then.
        self._to_send.put(None)
        if self._threads:
            self.line.wait(_CLOSE_S)
        self.line.cut()
        # Now both threads reach the end of their streams.
        for thread in self._threads:
            thread.join()
        self.line.close()

    def wait(self, answer: Future[Any], limit_s: float) -> Any:
        """Wait for the answer to an order sent by `tell`; raises as `ask` does."""
        try:
            return answer.result(limit_s)
        except FutureTimeout:
            reason = f"no answer within {limit_s:g} s; it may be overloaded"
            fault = Fault(machine=self.machine, kind="slow", reason=reason)
            raise machine_fault(fault) from None

    def _send(self) -> None:
        # The other side is gone: the receiving thread determines why.
        with contextlib.suppress(OSError, ValueError):
            while True:
                try:
                    data = self._to_send.get(timeout=PING_S)
                except queue.Empty:
                    # Silence would make the agent end the run.
                    data = b'{"do":"ping"}\n'
                if data is None:
                    break
                self.line.write(data)
        self.line.end_input()

    def _receive(self) -> None:
        torn = b""
        while part := self.line.read():
            # With every part, not every line: a long line over a slow link is no silence.
            self.heard_s = time.monotonic()
            *lines, torn = (torn + part).split(b"\n")
            try:
                for line in lines:
                    self._take_line(line)
                if len(torn) > _MAX_LINE_BYTES:
                    raise ValueError(f"a line of more than {_MAX_LINE_BYTES >> 20} MiB")
            except (ValueError, LookupError, TypeError) as error:
                # Members are trusted, but one that speaks nonsense costs itself, not the run.
                self.give_up(f"it sent what no agent sends ({printable(str(error))})")
                return
        if self._closing or self.fault is not None:
            return
        fault = self._explain()
        self.give_up(fault.reason, fault.kind)

    def _take_line(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        # Login scripts may print lines without the marker.
        if text.startswith(MARKER):
            self._take(msgspec.json.decode(text.removeprefix(MARKER), type=dict[str, Any]))

    def _take(self, news: News) -> None:
        kind = news["news"]
        if kind == "hello" and not self._hello.done():
            self._hello.set_result(msgspec.convert(news, AgentInfo))
        elif kind == "answer":
            future = self._asked.pop(news["id"], None)
            if future is None or future.done():
                return
            if "error" in news:
                said = printable(str(news["error"]))
                future.set_exception(LaunchError(f"{self.machine}: {said}", machine=self.machine))
            else:
                future.set_result(news["ok"])
        elif kind == "ending":
            self._ended_silent_s = float(news["silent_s"])
        elif kind not in ("hello", "alive"):
            try:
                self.on_news(news)
            except Exception:  # a thread's boundary: a fault of ours must not cut the connection
                _log.exception("news of %s could not be processed", self.machine)

    def _explain(self) -> Fault:
        """Classify why the line is over."""
        self.line.wait(_CLOSE_S)
        if self._hello.done() and self._ended_silent_s is not None:
            reason = (
                f"it heard nothing of this machine for {self._ended_silent_s:.0f} s and ended its "
                "processes; this machine was suspended, or the network was down for longer than "
                "'deadlines.controller_s'"
            )
            return Fault(machine=self.machine, kind="broken", reason=reason)
        return self.line.explain(has_answered=self._hello.done())
