"""Process the news of all machines of a run in one thread, apart from those that receive it.

A slow disk holds up this thread and no other: connections are still read, answers still taken, and
no machine looks silent. What waits is bounded per machine; beyond that its connection is not read
until there is room again, which `is_full` tells those who judge its silence.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.agent.session import News
from phalanx.errors import PhalanxError

_log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 32 << 20
# What an item weighs besides the content of a file.
_ITEM_BYTES = 512


@dataclass(frozen=True)
class _Item:
    machine: str
    news: News
    handle: Callable[[News], None]
    num_bytes: int


class NewsWriter:
    """Queue of news with a thread; the first item starts it, `close` ends it.

    Args:
        max_bytes: News of one machine that may wait.
    """

    def __init__(self, max_bytes: int = _MAX_WAITING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[_Item] = deque()
        self._num_bytes: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, machine: str, news: News, handle: Callable[[News], None]) -> None:
        """Queue one item, in order; waits while too much of the same machine waits.

        Args:
            machine: Where it comes from.
            news: The item.
            handle: Called with it by the thread; its errors are logged.
        """
        num_bytes = _ITEM_BYTES + len(news.get("content", ""))
        with self._changed:
            while self.is_full(machine) and not self._closed:
                self._changed.wait()
            if self._closed:
                return  # the run is over
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="news-writer")
                self._thread.start()
            self._waiting.append(_Item(machine, news, handle, num_bytes))
            self._num_bytes[machine] += num_bytes
            self._changed.notify_all()

    def is_full(self, machine: str) -> bool:
        """Whether no more news of a machine is taken now: it is this side that is slow."""
        return self._num_bytes[machine] >= self._max_bytes

    def has_waiting(self, machine: str) -> bool:
        """Whether news of a machine is not processed yet."""
        return self._num_bytes[machine] > 0

    def close(self) -> None:
        """Process what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                item = self._waiting[0]
            self._process(item)
            with self._changed:
                self._waiting.popleft()
                self._num_bytes[item.machine] -= item.num_bytes
                self._changed.notify_all()

    def _process(self, item: _Item) -> None:
        try:
            item.handle(item.news)
        except PhalanxError as error:
            _log.warning("news of %s is lost: %s", item.machine, error)
        except Exception:  # a thread's boundary: a fault of ours must not end all news
            _log.exception("news of %s could not be processed", item.machine)
