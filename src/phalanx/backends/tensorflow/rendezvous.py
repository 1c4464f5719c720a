"""Exchange the addresses of the processes of a TensorFlow cluster.

Each binds a free port without listening until TensorFlow's server shares it, so no other process
can take it in between. Addresses travel over the control channel. A restarted process takes the
port of its predecessor, because the others go on calling there.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from phalanx.errors import LaunchError
from phalanx.spec.environment import Endpoint, tf_config
from phalanx.wire.deadline import Deadline
from phalanx.worker.context import WorkerContext


class HeldPort:
    """A bound port of this machine, held until closed; 0 takes any that is free."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise LaunchError(f"cannot take {host}:{port}: {error.strerror}") from error

    @property
    def address(self) -> str:
        """host:port."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        """Release the port to TensorFlow's server."""
        self._socket.close()


def exchange_addresses(
    context: WorkerContext, processes: Sequence[str], *, group: int
) -> tuple[str, HeldPort]:
    """Publish the address of this process, and wait for those of the others.

    Returns this process's TF_CONFIG, and its port: to be closed once TensorFlow's server listens.
    `group` keeps the clusters of several phases apart.
    """
    deadline = Deadline.after(context.job.deadlines.start_s, "the addresses of all processes")
    prefix, own = f"tensorflow/{group}/", context.spec.process
    wanted = 0
    # The others go on calling the address that its predecessor published.
    if context.spec.incarnation > 1:
        before = context.control.get(prefix + own, deadline).decode()
        wanted = int(before.rpartition(":")[2])
    port = HeldPort(context.spec.address, wanted)
    context.control.put(prefix + own, port.address.encode())
    everybody = {name: _endpoint(name, context, prefix, deadline) for name in processes}
    return tf_config(everybody[own], list(everybody.values())), port


def _endpoint(process: str, context: WorkerContext, prefix: str, deadline: Deadline) -> Endpoint:
    role, _, rank = process.partition("-")
    address, _, port = context.control.get(prefix + process, deadline).decode().rpartition(":")
    return Endpoint(role=role, rank=int(rank), machine=address, address=address, port=int(port))
