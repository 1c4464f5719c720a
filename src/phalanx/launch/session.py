"""The controller's end of one machine: a supervisor is sent there over ssh, then orders and news.

One ssh process per machine lives as long as the session. It is in a session of its own, so that
Ctrl-C ends the controller and not the line. If this process dies, however it dies, ssh's input
closes, and with it everything on the other side ends; if the network dies, pings stop, with the
same end. What the news mean is decided by `ssh`, which makes the sessions of a run.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from importlib import resources
from typing import IO, Any

import msgspec

from phalanx.errors import LaunchError
from phalanx.launch.remote import MARKER
from phalanx.pool.ssh import SshRoute, explain

_log = logging.getLogger(__name__)

News = dict[str, Any]

PING_S = 1.0
_HELLO_S = 60.0
_CLOSE_S = 3.0
# Reads as many bytes as the first line says and runs them; the rest of the input is orders.
_LOADER = (
    "import sys; n = int(sys.stdin.buffer.readline()); "
    'exec(compile(sys.stdin.buffer.read(n), "phalanx-supervisor", "exec"))'
)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor says first."""

    pid: int
    host: str
    home: str
    python: tuple[int, int, int]
    executable: str
    cpus: list[int]
    came_from: str
    """The address from which ssh came, as that machine saw it; empty: not said."""


class Session:
    """A line to one machine; `open` first, `close` on every way out.

    Args:
        route: How to get there.
        on_news: Called by the session's thread for what processes there write and how they end.
    """

    def __init__(
        self, route: SshRoute, on_news: Callable[[News], None] = lambda news: None
    ) -> None:
        self.machine = route.machine.title
        self.route = route
        self.on_news = on_news
        self.fault: str | None = None
        """Why the line is gone, in one sentence; None: it is there."""
        self._hello: Future[Hello] = Future()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._threads: list[threading.Thread] = []

    @property
    def silent_s(self) -> float:
        """Time since something was heard."""
        return time.monotonic() - self._heard

    def open(self) -> Hello:
        """Log in and start the supervisor.

        Raises:
            LaunchError: The machine cannot be reached, or did not answer in time.
        """
        source = resources.files("phalanx.launch").joinpath("remote.py").read_bytes()
        command = self.route.command(self.route.python("-u", "-c", _LOADER))
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        self._to_send.put(b"%d\n" % len(source) + source)
        for name, target in (("from", self._receive), ("to", self._send)):
            thread = threading.Thread(target=target, name=f"{name}-{self.machine}", daemon=True)
            thread.start()
            self._threads.append(thread)
        hello: Hello = self.wait(self._hello, _HELLO_S)
        return hello

    def tell(self, order: dict[str, Any], content: bytes = b"") -> Future[Any]:
        """Give an order; the answer comes later, or a `LaunchError`."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._asked[number] = future
        if self.fault is not None:
            future.set_exception(self._error())
            return future
        line = msgspec.json.encode({**order, "id": number, "bytes": len(content)})
        self._to_send.put(line + b"\n" + content)
        return future

    def ask(self, order: dict[str, Any], limit_s: float, content: bytes = b"") -> Any:
        """Give an order and wait for its answer.

        Raises:
            LaunchError: The line is gone, the machine was too slow, or it could not do it.
        """
        return self.wait(self.tell(order, content), limit_s)

    def give_up(self, reason: str) -> None:
        """Count the machine as lost; whatever was asked of it fails."""
        if self.fault is None:
            self.fault = reason
        self._end_ssh()
        for future in (self._hello, *self._asked.values()):
            if not future.done():
                future.set_exception(self._error())

    def close(self) -> None:
        """End the line; the other side ends with it."""
        self._closing = True
        self._to_send.put(None)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_S)
        self._end_ssh()
        for thread in self._threads:
            thread.join()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        if self._said is not None:
            self._said.close()

    def _end_ssh(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait(self, answer: Future[Any], limit_s: float) -> Any:
        """Wait for the answer to an order that was told.

        Raises:
            LaunchError: As by `ask`.
        """
        try:
            return answer.result(limit_s)
        except FutureTimeout:
            raise LaunchError(
                f"{self.machine} did not answer within {limit_s:g} s", machine=self.machine
            ) from None

    def _send(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        stream = self._process.stdin
        # The reader of the pipe is gone: the receiving thread says why.
        with contextlib.suppress(BrokenPipeError, ValueError):
            while True:
                try:
                    data = self._to_send.get(timeout=PING_S)
                except queue.Empty:
                    data = b'{"do":"ping"}\n'
                if data is None:
                    break
                stream.write(data)
                stream.flush()
        with contextlib.suppress(BrokenPipeError):
            stream.close()

    def _receive(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard = time.monotonic()
            text = line.decode(errors="replace")
            if text.startswith(MARKER):
                self._take(msgspec.json.decode(text.removeprefix(MARKER)))
        if self._closing or self.fault is not None:
            return
        self.give_up(self._explain())

    def _take(self, news: News) -> None:
        kind = news["news"]
        if kind == "hello":
            self._hello.set_result(msgspec.convert(news, Hello))
        elif kind == "answer":
            future = self._asked.pop(news["id"], None)
            if future is None or future.done():
                return
            if "error" in news:
                future.set_exception(
                    LaunchError(f"{self.machine}: {news['error']}", machine=self.machine)
                )
            else:
                future.set_result(news["ok"])
        elif kind != "alive":
            try:
                self.on_news(news)
            except Exception:  # a thread's boundary: a full disk here must not cut the line
                _log.exception("news of %s could not be taken in", self.machine)

    def _explain(self) -> str:
        """Why ssh has ended, in its own words or in the remote shell's."""
        assert self._process is not None
        assert self._said is not None
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_CLOSE_S)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        if self._hello.done():
            # What ssh says then is of little help: whoever was there is there no more.
            last = said.strip().splitlines()[-1:] or [f"ssh ended with code {code}"]
            return f"the line to it broke off ({last[0].strip().rstrip('.')})"
        return explain(self.route.machine, said, code).reason

    def _error(self) -> LaunchError:
        return LaunchError(f"{self.machine}: {self.fault}", machine=self.machine)
