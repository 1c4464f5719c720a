"""One task at a time beside the training; what goes wrong in it is told at the next occasion."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """A thread that is there while there is something to do.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._refusal: Exception | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task, once the one before is done.

        Raises:
            Exception: What an earlier task broke off with.
        """
        self.wait()
        self._thread = threading.Thread(target=lambda: self._do(task), name=self._name)
        self._thread.start()

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until nothing is being done, or for so long; False: something still is.

        Without a limit the task itself sees to it that it ends.

        Raises:
            Exception: What a task broke off with.
        """
        if self._thread is not None:
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        if self._refusal is not None:
            raise self._refusal
        return True

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # the thread's boundary: raised by whoever waits for it
            self._refusal = error
