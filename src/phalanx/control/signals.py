"""Ctrl-C and SIGTERM as facts that the controller's loop looks at, instead of sudden exceptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class CaughtSignals:
    """Which signal arrived, and how often."""

    number: int | None = None
    times: int = 0


@contextmanager
def catch_signals() -> Iterator[CaughtSignals]:
    """Note SIGINT and SIGTERM inside the block instead of dying from them.

    Only the main thread can do this; elsewhere (a notebook's worker thread) the block just runs.
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
