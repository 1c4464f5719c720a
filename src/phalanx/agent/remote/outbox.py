"""Send news to the controller from a thread of its own, in the order in which it was put.

Part of the agent. Orders are obeyed while the pipe to the controller is full: only the sender of
files looks whether there is room, and waits for it without holding anything up.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from typing import Any

MARKER = "@phalanx@"
"""Precedes every item of news, because login scripts may print."""
# Files wait in their files rather than here.
_ROOM_BYTES = 1 << 19


class Outbox:
    """Queue of news with a writing thread.

    Args:
        descriptor: Where the news is written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._changed = threading.Condition()

    def start(self) -> None:
        """Start the thread, which ends with the program."""
        threading.Thread(target=self._write, name="outbox", daemon=True).start()

    @property
    def has_room(self) -> bool:
        """Whether more of a file may be put; answers and exits always may."""
        return self._num_bytes < _ROOM_BYTES

    def put(self, news: dict[str, Any]) -> None:
        """Queue one item of news; never waits."""
        data = (MARKER + json.dumps(news) + "\n").encode()
        with self._changed:
            self._waiting.append(data)
            self._num_bytes += len(data)
            self._changed.notify_all()

    def flush(self, limit_s: float) -> None:
        """Wait until everything is written, at most that many seconds."""
        giving_up = time.monotonic() + limit_s
        with self._changed:
            while self._waiting and (left := giving_up - time.monotonic()) > 0:
                self._changed.wait(left)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting[0]
            rest = data
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                # The reader is gone; the end of the input will report that.
                pass
            with self._changed:
                # Only now: `flush` promises that it is written.
                self._waiting.popleft()
                self._num_bytes -= len(data)
                self._changed.notify_all()
