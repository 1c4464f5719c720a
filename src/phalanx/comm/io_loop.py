"""The one thread of a process that moves the bytes of all its groups.

Everything that touches a socket of the exchange runs here, as calls and handlers; other threads
only queue calls. No handler may block.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
Handler = Callable[[int], None]

_log = logging.getLogger(__name__)


class Timer:
    """A call at a later time; `cancel` takes it back."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Never make the call."""
        self._action = None

    def fire(self) -> None:
        """Make the call, unless it was taken back."""
        if self._action is not None:
            self._action()


class IoLoop:
    """A thread with sockets, timers and calls; ends with `close`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._selector.register(self._wake_out, READ, self._on_wake)
        self._calls: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._closing = False
        # A daemon: a process that ends without closing must not hang in its own exchange.
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], object]) -> None:
        """Have the loop's thread make a call soon; calls keep their order. From any thread.

        After the end nothing is called any more.
        """
        if self._closing:
            # The number of its pipe may belong to another file by now.
            return
        self._calls.append(action)
        # So many wake-ups may wait already that one more adds nothing.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_in, b"\0")

    def watch(self, sock: socket.socket, events: int, handler: Handler) -> None:
        """Call a handler whenever a socket can be read or written; the loop's thread only."""
        self._selector.register(sock, events, handler)

    def change(self, sock: socket.socket, events: int, handler: Handler) -> None:
        """Watch a known socket for other events; the loop's thread only."""
        self._selector.modify(sock, events, handler)

    def forget(self, sock: socket.socket) -> None:
        """Watch a socket no longer; the loop's thread only."""
        self._selector.unregister(sock)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Make a call later; the loop's thread only."""
        timer = Timer(action)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def close(self) -> None:
        """End the thread; queued calls are made first. May be repeated."""
        if self._closing:
            return
        self.call(self._stop)
        self._thread.join()
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _stop(self) -> None:
        self._closing = True

    def _run(self) -> None:
        while not self._closing:
            for key, events in self._selector.select(self._until_timer()):
                self._guard(key.data, events)
            self._make_calls()
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._guard(lambda timer: timer.fire(), heapq.heappop(self._timers)[2])

    def _until_timer(self) -> float | None:
        if self._calls:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _make_calls(self) -> None:
        while self._calls:
            self._guard(lambda action: action(), self._calls.popleft())

    @staticmethod
    def _guard(handler: Callable[..., object], argument: object) -> None:
        """Call a handler; groups handle their own errors, and one that does not ends no other."""
        try:
            handler(argument)
        except Exception:  # the boundary of a thread that serves several groups
            _log.exception("an error in the exchange's thread")

    def _on_wake(self, events: int) -> None:
        os.read(self._wake_out, 4096)
