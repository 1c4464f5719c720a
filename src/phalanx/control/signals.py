"""Turn Ctrl-C and SIGTERM into flags that the controller's loop reads, instead of exceptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class CaughtSignals:
    """The signal that arrived, and how often."""

    number: int | None = None
    times: int = 0


@contextmanager
def catch_signals() -> Iterator[CaughtSignals]:
    """Record SIGINT and SIGTERM inside the block instead of dying from them.

    Only the main thread can do this; in any other, such as a notebook's, the block just runs.
    """
    caught = CaughtSignals()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, frame: FrameType | None) -> None:
        caught.number = caught.number or number
        caught.times += 1

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
