"""Terminate a process when its controller is gone, or when it is asked to.

Three independent triggers, the lifelines: the system's parent-death signal (this machine only), the
end of standard input (any launcher), and SIGTERM, which a thread waits for because the main thread
may be blocked in a collective.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the system kill this process when its parent ends, even by SIGKILL (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent ended before the signal was requested.
        os._exit(1)


def adopt_orphans() -> None:
    """Have the system make this process the parent of what its descendants leave (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def watch_signals(on_exit: Callable[[], None]) -> None:
    """Exit on SIGTERM at once, whatever the main thread does; call before any thread starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        # A full disk may make it fail; the process ends all the same.
        try:
            on_exit()
        finally:
            os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def watch_stdin(descriptor: int, on_exit: Callable[[], None]) -> None:
    """Exit when the launcher's end of standard input closes."""

    def wait() -> None:
        # Not through sys.stdin: its lock would be held when the interpreter shuts down.
        while os.read(descriptor, 1024):
            pass
        try:
            on_exit()
        finally:
            os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
