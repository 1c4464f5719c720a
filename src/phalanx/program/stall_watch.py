"""Name a worker whose script holds up the others: where it has been, and for how long.

A thread of its own looks: the script's has no time. It decides nothing, because nobody can tell a
slow script from one that hangs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 8.0
_LOOK_S = 1.0
# Times the longest turn so far: a script that is always slow does not hang.
_UNUSUAL = 5.0


class StallWatch:
    """Notice turns of the script within an epoch that take unusually long.

    Args:
        name: File name of the script.
        tell: Called with one sentence, once per turn.
    """

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._thread_id = threading.get_ident()
        self._since: float | None = None
        self._longest_s = 0.0
        self._told = False
        self._ended = threading.Event()

    def begin_turn(self) -> None:
        """Note that the script works on a batch."""
        self._told = False
        self._since = time.monotonic()

    def end_turn(self) -> None:
        """Note that the script has handed over."""
        if self._since is not None:
            self._longest_s = max(self._longest_s, time.monotonic() - self._since)
        self._since = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look until the block is left."""
        thread = threading.Thread(target=self._look, name="phalanx-stall-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            since = self._since
            if since is None or self._told:
                continue
            spent_s = time.monotonic() - since
            if spent_s > max(LIMIT_S, _UNUSUAL * self._longest_s):
                self._told = True
                self._tell(f"has been {spent_s:.0f} s on one batch{self._where()}; others wait")

    def _where(self) -> str:
        """Return the line of the script that the main thread is in."""
        frame = sys._current_frames().get(self._thread_id)
        while frame is not None:
            if Path(frame.f_code.co_filename).name == self._name:
                return f", in line {frame.f_lineno} of {self._name}"
            frame = frame.f_back
        return ""
