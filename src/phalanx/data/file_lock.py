"""Let one process of a machine do what others wait for, such as decoding a data set."""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from phalanx.errors import TimeoutExpired

_POLL_S = 0.05  # flock cannot wait with a deadline, so waiting is trying again

logger = logging.getLogger(__name__)


@contextmanager
def hold_lock(path: Path, deadline: timedelta, task: str) -> Iterator[None]:
    """Hold an advisory lock on a file; where the file system has none, nobody waits.

    Args:
        path: The file.
        deadline: For another process that holds it.
        task: What is done under it, such as `decode the data`.

    Raises:
        TimeoutExpired: Another process held it for too long.
    """
    ends_at = time.monotonic() + deadline.total_seconds()
    pause = threading.Event()
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise TimeoutExpired(
                        f"another process has held {path} for {deadline.total_seconds():.0f} s; "
                        "end it, or delete the file if there is none",
                        activity=f"waiting for another process to {task}",
                        path=path,
                    ) from None
                pause.wait(_POLL_S)
            except OSError:
                logger.warning("no file locks on %s; processes may %s twice", path.parent, task)
                break
        yield
