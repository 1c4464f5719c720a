"""Build input pipelines of timed stages: iterators that pull from one another.

A chain of `InputStage`s runs in the thread that pulls it. `Prefetch` pulls a chain in its own
thread, so that it overlaps with training. Nothing here knows about data sets; `pipeline`
builds the chains.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import repeat
from typing import Generic, TypeVar

from phalanx.errors import TimeoutExpired

In = TypeVar("In")
Out = TypeVar("Out")

_JOIN_S = 5.0  # a batch takes milliseconds; a thread that outlasts this hangs in the file system

logger = logging.getLogger(__name__)


class InputStage(Generic[In, Out]):
    """Apply a function to each item and add up the time of the function alone."""

    def __init__(self, name: str, source: Iterator[In], work: Callable[[In], Out]) -> None:
        self.name = name
        self.seconds = 0.0
        self.items = 0
        self._source = source
        self._work = work

    def __iter__(self) -> Iterator[Out]:
        return self

    def __next__(self) -> Out:
        item = next(self._source)
        started = time.perf_counter()
        try:
            result = self._work(item)
        finally:
            self.seconds += time.perf_counter() - started
        self.items += 1
        return result


class InputOrigin(InputStage[None, Out]):
    """Head of a chain: time how long an iterator takes to produce its items."""

    def __init__(self, name: str, source: Iterator[Out]) -> None:
        super().__init__(name, repeat(None), lambda _: next(source))


@dataclass
class _Channel(Generic[Out]):
    """State that the two threads share."""

    depth: int
    ready: deque[Out] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False
    finished: bool = False
    error: BaseException | None = None

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Prefetch(Generic[Out]):
    """Pull a chain ahead of its consumer, in a background thread.

    The thread starts with the first item asked for and ends with the last one, with `close`, or
    when this object is collected. An exception in the chain is raised to the consumer in its place.
    While the consumer holds item i, items i+1 to i+depth may be ready and one more in the making: a
    chain that reuses buffers needs `depth + 2` of them. `seconds` is how long the consumer waited,
    for one item until the deadline at most.
    """

    name = "prefetch"

    def __init__(
        self, source: Iterator[Out], *, depth: int, deadline: timedelta = timedelta(minutes=5)
    ) -> None:
        if depth < 1:
            raise ValueError(f"a prefetch of {depth} holds nothing; use 1 or more, or no prefetch")
        self.seconds = 0.0
        self.items = 0
        self._source = source
        self._deadline = deadline
        self._channel: _Channel[Out] = _Channel(depth=depth)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Out]:
        return self

    def __next__(self) -> Out:
        if self._thread is None and not self._channel.closed:
            self._start()
        channel = self._channel
        started = time.perf_counter()
        with channel.changed:
            in_time = channel.changed.wait_for(
                lambda: channel.ready or channel.finished or channel.closed,
                timeout=self._deadline.total_seconds(),
            )
            has_item = bool(channel.ready) and not channel.closed
            if has_item:
                item = channel.ready.popleft()
                channel.changed.notify_all()
        self.seconds += time.perf_counter() - started
        if has_item:
            self.items += 1
            return item
        self.close()
        if not in_time:
            raise TimeoutExpired(
                f"no batch was ready within {self._deadline.total_seconds():.0f} s; "
                "check the disk or network drive that the data lies on",
                activity="waiting for the input pipeline",
            )
        if channel.error is not None:
            error, channel.error = channel.error, None
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread; items not yet taken are dropped. May be called more than once."""
        self._channel.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                logger.warning("the input thread did not end within %.0f s", _JOIN_S)

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=_pump, args=(self._source, self._channel), name="phalanx-prefetch", daemon=True
        )
        # The thread refers to the channel but not to this object, so that it can be collected.
        weakref.finalize(self, self._channel.close)
        self._thread.start()


def _pump(source: Iterator[Out], channel: _Channel[Out]) -> None:
    """Run the background thread."""
    error: BaseException | None = None
    try:
        for item in source:
            with channel.changed:
                channel.ready.append(item)
                channel.changed.notify_all()
                # Waits for training, which may take as long as it likes; `close` always ends it.
                channel.changed.wait_for(
                    lambda: len(channel.ready) < channel.depth + 1 or channel.closed
                )
                if channel.closed:
                    return
    except BaseException as caught:  # thread boundary: raised again where the item is asked for
        error = caught
    with channel.changed:
        channel.error = error
        channel.finished = True
        channel.changed.notify_all()
