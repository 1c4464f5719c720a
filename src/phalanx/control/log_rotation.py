"""Keep what the processes of a run print within bounds.

A process writes its log itself, through a descriptor that outlives any renaming, so a long log is
copied to `<process>.log.1` and cut to nothing in place. Lines that are printed between the copy and
the cut are lost; those of the run's own records are in `events/`, which is not rotated.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from types import TracebackType

_log = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20
_EVERY_S = 30.0


class LogRotation:
    """Look after the logs of a run in a thread; use as a context manager.

    Args:
        folder: The run directory's `logs`.
        limit_bytes: Size from which a log is rotated.
        every_s: Seconds between two looks.
    """

    def __init__(
        self, folder: Path, *, limit_bytes: int = LIMIT_BYTES, every_s: float = _EVERY_S
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-rotation", daemon=True)

    def __enter__(self) -> LogRotation:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            for path in self._folder.glob("*.log"):
                rotate(path, self._limit_bytes)


def rotate(path: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Move what a log holds to its `.1` if it is too long; returns whether it was.

    On a full disk the log is cut without a copy: it would take the last space from the run.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return False
        older = path.with_name(f"{path.name}.1")
        try:
            shutil.copyfile(path, older)
        except OSError as error:
            _log.warning("%s is cut without a copy: %s", path, error.strerror)
            older.unlink(missing_ok=True)
        os.truncate(path, 0)
    except OSError as error:
        _log.warning("%s cannot be rotated: %s", path, error.strerror)
        return False
    return True
