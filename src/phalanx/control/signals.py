"""Turn Ctrl-C, SIGTERM and a closed terminal into flags that the controller's loop reads."""

from __future__ import annotations

import errno
import os
import signal
import termios
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
    """Record SIGINT, SIGTERM and SIGHUP inside the block instead of dying from them.

    A SIGHUP that is ignored, as under `nohup`, stays ignored.

    Only the main thread can do this; in any other, such as a notebook's, the block just runs.
    """
    caught = CaughtSignals()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, frame: FrameType | None) -> None:
        caught.number = caught.number or number
        caught.times += 1
        if number == signal.SIGHUP:
            _leave_closed_terminal()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_closed_terminal() -> None:
    """Send further output nowhere if the terminal is gone: every write to it would fail."""
    for descriptor in (0, 1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
