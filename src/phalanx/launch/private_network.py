"""Keep the ports of a framework that trusts every client away from the network.

TensorFlow's server listens on all interfaces, asks nobody who they are, and runs what it is sent.
The processes of a run on this machine therefore get a network namespace with a loopback device and
nothing else: nobody outside of the run can connect, not even another user of this machine. Where
the system allows no namespace, or the processes are on several machines, the user has to say that
the network is to be trusted.
"""

from __future__ import annotations

import logging
import subprocess
import sys

from phalanx.errors import LaunchError, SpecError
from phalanx.spec.backend import BACKENDS
from phalanx.spec.job import JobSpec

_log = logging.getLogger(__name__)

_START_S = 20.0
# Holds the namespace until its standard input closes. A user namespace around it gives a plain user
# the rights to make one; users and files stay the same inside.
_HOLDER = """
import ctypes, fcntl, os, socket, struct, sys
new_user, new_net, get_flags, set_flags, up = 0x10000000, 0x40000000, 0x8913, 0x8914, 0x41
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(1, 9)
user, group = os.geteuid(), os.getegid()
if libc.unshare(new_net):
    if libc.unshare(new_user | new_net):
        sys.exit(os.strerror(ctypes.get_errno()))
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))
print("ready", flush=True)
sys.stdin.read()
"""


def opens_ports(job: JobSpec) -> bool:
    """Whether processes of a job listen where everybody may connect and is obeyed."""
    return BACKENDS.find(job.backend).opens_ports and job.processes.total > 1


def trusted_network_note(job: JobSpec, *, why: str) -> str:
    """Print and return the warning for a job whose ports everybody may use.

    Raises:
        SpecError: The user has not said that the network is to be trusted.
    """
    if not job.trust_network:
        raise SpecError(
            f"backend {job.backend} opens ports through which anyone who reaches them can run code "
            f"as you, and {why}; set 'trust_network: true' if everyone on this network may, or "
            "'backend: native'"
        )
    note = (
        "trust_network: anyone who can connect to these machines can run code as you while "
        f"{job.backend} trains"
    )
    # Now, not only with the results: it is in the meantime that it matters.
    _log.warning("%s", note)
    return note


class PrivateNetwork:
    """Network namespace of one run on this machine, from `start` to `close`."""

    def __init__(self) -> None:
        self._holder: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """Process whose namespaces the processes of the run enter; None: there is none."""
        return self._holder.pid if self._holder is not None else None

    def start(self) -> None:
        """Make the namespace.

        Raises:
            LaunchError: The system refuses; the reason is in words.
        """
        self._holder = subprocess.Popen(
            [sys.executable, "-I", "-c", _HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        # Its end closes the stream as well, so this waits for no one who is gone.
        if self._holder.stdout.readline().strip() != "ready":
            _, said = self._holder.communicate(timeout=_START_S)
            self._holder = None
            reason = said.strip().splitlines()[-1:] or ["it ended without a word"]
            raise LaunchError(f"no network namespace can be made here ({reason[0]})")

    def close(self) -> None:
        """End the holder; the namespace ends with the last process in it. May be repeated."""
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.kill()
            holder.communicate(timeout=_START_S)
