"""Define batches, the stream that a worker reads them from, and the thread that works ahead.

`pipeline` builds the streams.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from phalanx.data.base import Array
from phalanx.data.normalize import NetworkInputs
from phalanx.data.order import Indices
from phalanx.errors import TimeoutExpired
from phalanx.spec.fields import InputField


@dataclass(frozen=True)
class Batch:
    """One worker's samples of one step.

    `inputs` lies in a buffer that the stream uses again: it is the consumer's until it asks for the
    next batch. `copy` makes a batch that lasts.
    """

    inputs: NetworkInputs
    """Contiguous (n, H, W, C) or (n, ...); n may be 0. int64 only where a network of the user's
    reads whole numbers."""
    targets: Array
    """int64 labels or float32 values."""
    indices: Indices
    """Indices of the samples in their part."""
    global_count: int
    """Samples of all workers in this step."""
    global_offset: int
    """Samples of all workers in this epoch before this step."""
    epoch: int
    step: int
    fields: tuple[InputField, ...] = ()
    """Inputs in a packed row of bytes; empty: samples have one input, as it is."""

    def __len__(self) -> int:
        return len(self.targets)

    def copy(self) -> Batch:
        """Return a batch that owns its inputs."""
        return replace(self, inputs=self.inputs.copy())


class BatchStream:
    """The batches of one epoch or evaluation, once through.

    Use it in a `with` block, so that leaving the loop early ends its threads at once.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        *,
        threads: Sequence[Prefetch[Any]],
        steps: range,
    ) -> None:
        self._batches = batches
        self._threads = threads
        self.first_step = steps.start
        self.num_steps = steps.stop
        """One past the last step's number: for a whole epoch, the number of its steps."""

    def __len__(self) -> int:
        return self.num_steps - self.first_step

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the background threads, if any; the batches not yet taken are dropped."""
        # The one that is nearest to the source first, since the others may be waiting for it.
        for thread in self._threads:
            thread.close()


Out = TypeVar("Out")

_JOIN_S = 5.0  # a batch takes milliseconds; a thread that outlasts this hangs in the file system

logger = logging.getLogger(__name__)


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
    chain that reuses buffers needs `depth + 2` of them.
    """

    def __init__(
        self, source: Iterator[Out], *, depth: int, deadline: timedelta = timedelta(minutes=5)
    ) -> None:
        if depth < 1:
            raise ValueError(f"a prefetch of {depth} holds nothing; use 1 or more, or no prefetch")
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
        with channel.changed:
            in_time = channel.changed.wait_for(
                lambda: channel.ready or channel.finished or channel.closed,
                timeout=self._deadline.total_seconds(),
            )
            has_item = bool(channel.ready) and not channel.closed
            if has_item:
                item = channel.ready.popleft()
                channel.changed.notify_all()
        if has_item:
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
