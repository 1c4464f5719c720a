"""Lock a study directory, so that one process at a time runs it.

The lock is an open file that the processes of trials inherit, so it is held until the last of them
has exited: a killed study cannot be resumed while its trials are still shutting down.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from phalanx.errors import StoreError
from phalanx.records.rundir import is_alive

# A trial ends its workers within seconds of losing its study.
_WIND_DOWN_S = 60.0
_LOOK_S = 0.2


class StudyLock:
    """Holds a study directory; use as a context manager."""

    def __init__(self, path: Path, *, patience_s: float = _WIND_DOWN_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._descriptor = -1

    def __enter__(self) -> StudyLock:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def descriptor(self) -> int:
        """The descriptor that the processes of trials inherit."""
        return self._descriptor

    def _take(self) -> None:
        end_s = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
                if holder is not None:
                    raise StoreError(
                        f"the study in {self._path.parent} is being run by process {holder}; "
                        "wait for it or end it first",
                        path=str(self._path),
                    ) from None
                if time.monotonic() > end_s:
                    raise StoreError(
                        f"processes of an earlier session still hold {self._path} after "
                        f"{self._patience_s:g} s; end them first",
                        path=str(self._path),
                    ) from None
                # flock waits without limit or not at all; a deadline needs polling.
                time.sleep(_LOOK_S)
            else:
                return

    def _holder(self) -> int | None:
        text = os.pread(self._descriptor, 32, 0).decode(errors="replace")
        return int(text) if text.isdecimal() and is_alive(int(text)) else None
