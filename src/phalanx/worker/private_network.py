"""Enter the network namespace of a run, in which nobody else can reach a framework's ports.

Namespaces belong to threads: those that exist before `enter` keep the machine's network, so the
control channel stays where it is, while the main thread and every thread that it starts afterwards
see the run's own loopback device and nothing else.
"""

from __future__ import annotations

import ctypes
import os

from phalanx.errors import LaunchError

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_DUMPABLE = 4


class PrivateNetworkEntry:
    """Way of one process into the namespaces that another process holds.

    Args:
        holder_pid: That process; None: this process stays in the machine's network.
    """

    def __init__(self, holder_pid: int | None) -> None:
        self._network: int | None = None
        if holder_pid is not None:
            self._network = os.open(f"/proc/{holder_pid}/ns/net", os.O_RDONLY)
            self._enter_user(f"/proc/{holder_pid}/ns/user")

    def enter(self) -> None:
        """Move the calling thread into the run's network; called once, by the main thread."""
        if self._network is not None:
            _set_namespace(self._network, _CLONE_NEWNET)
            os.close(self._network)
            self._network = None

    def _enter_user(self, path: str) -> None:
        """Take over the rights of a plain user there; possible only before any thread starts."""
        if os.readlink(path) == os.readlink("/proc/self/ns/user"):
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _set_namespace(descriptor, _CLONE_NEWUSER)
        finally:
            os.close(descriptor)
        # Else its own entries in /proc would belong to root from now on.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)


def _set_namespace(descriptor: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind):
        reason = os.strerror(ctypes.get_errno())
        raise LaunchError(f"the private network of the run cannot be entered: {reason}")
