"""Run calls from other threads in the thread that serves a shard.

A shard is not thread-safe: everything that the control plane wants of it runs in the serving
thread, between two messages.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")
_Call = Callable[[BaseException | None], None]


class CallQueue:
    """Run functions of other threads in the serving thread; use as a context manager."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def __enter__(self) -> CallQueue:
        # A socket pair, because the serving thread sleeps in a poll over sockets.
        self.wakeup, self._waker = socket.socketpair()
        return self

    def __exit__(self, *exception: object) -> None:
        self.wakeup.close()
        self._waker.close()

    def put(self, function: Callable[[], Value]) -> Future[Value]:
        """Queue a function to run between two messages; safe from any thread."""
        future: Future[Value] = Future()

        def run(error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
                return
            try:
                future.set_result(function())
            except Exception as error:  # the boundary of a thread: the caller's result raises it
                future.set_exception(error)

        # Either the serving thread still sees the call, or the caller sees the thread's error.
        with self._lock:
            error = self._error
            if error is None:
                self._calls.put(run)
        if error is None:
            self._waker.send(b"\0")
        else:
            run(error)
        return future

    def run(self) -> None:
        """Run the queued functions; called by the serving thread when `wakeup` is readable."""
        self.wakeup.recv(4096)
        while not self._calls.empty():
            self._calls.get()(None)

    def fail(self, error: BaseException) -> None:
        """Let all calls, queued and to come, raise an error: the serving thread has ended."""
        with self._lock:
            self._error = error
        while not self._calls.empty():
            self._calls.get()(error)
