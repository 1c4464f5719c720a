"""Waiting for something outside this process to happen, with a limit and without a fixed sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from phalanx.wire.deadline import Deadline

Found = TypeVar("Found")
_INTERVAL_S = 0.02


def wait_until(probe: Callable[[], Found], activity: str, *, limit_s: float = 60.0) -> Found:
    """Call `probe` until it returns something true; `TimeoutExpired` names the activity."""
    deadline = Deadline.after(limit_s, activity)
    pause = threading.Event()
    while not (found := probe()):
        deadline.check()
        pause.wait(_INTERVAL_S)
    return found
