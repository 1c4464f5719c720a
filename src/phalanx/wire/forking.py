"""Protocol between a launcher and a fork server: one connection per process to fork.

The launcher sends a `ForkRequest` with the descriptors of the three standard streams; the fork
server answers with the process id and a pidfd, or with a refusal, and later with the exit code.
A connection lives as long as the launcher and the process both do: its end means that the launcher
is gone. Only the standard library is imported, because a fork server counts what its imports start,
and because an agent takes this module along to machines where nothing is installed.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Set by the worker from its spec, whatever the launcher's environment says."""
SPIN_COUNT = 10_000
"""How often a thread of libgomp looks for work before it sleeps, unless the user says otherwise.

Its own 300,000 are milliseconds of a core that other programs could use: where all cores are busy,
the threads of a worker hold up one another, and its speed falls to a tenth. No looking at all costs
an idle machine a third of the speed. Measured by `benchmarks/threads.py`."""
_SPIN_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# Libraries below a worker read these once, when they are loaded: a fork cannot change them later.
_READ_AT_LOAD = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "ATEN_", "GLOO_", "NCCL_", "CUDA_", "HIP_", "TF_", "NPY_", "NUMPY_"),
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_"),
)
# Replaced after the fork, or set by scikit-learn and torch themselves while they are imported.
_EXEMPT = (
    *(*THREAD_VARIABLES, "PYTHONPATH"),
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),
)
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_PACKAGES = ("phalanx", "torch", "numpy")
_LENGTH = struct.Struct("!I")
_PEER = struct.Struct("3i")
_MAX_BYTES = 16 << 20
NUM_STREAMS = 3


@dataclass(frozen=True)
class ForkRequest:
    """A process for a fork server to start; standard streams are sent beside it."""

    module: str
    """Module to run, as `python -m` would."""
    directory: str
    environment: dict[str, str]
    """All variables of the process; the fork server's own are removed."""
    cpus: list[int]
    """The cores of the launcher, which a cold process would inherit."""
    surroundings: dict[str, Any]
    """Of the launcher; a fork server with different ones refuses."""


def surroundings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Collect everything that a cold process inherits or loads and a fork cannot change.

    Args:
        environment: The variables that the process is to have.
    """
    return {
        "interpreter": [os.path.realpath(sys.executable), sys.prefix, sys.version],
        "packages": _packages(),
        **inherited(environment),
    }


def inherited(environment: Mapping[str, str]) -> dict[str, Any]:
    """Collect the part of the surroundings that does not depend on the interpreter.

    An agent names this part alone: it started the fork server with the command of a cold process,
    and may itself run under another interpreter.
    """
    return {
        "user": [os.getuid(), os.getgid(), *sorted(os.getgroups())],
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "umask": _umask(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {
            name: list(resource.getrlimit(getattr(resource, name)))
            for name in dir(resource)
            # Every process of a run raises its own number of descriptors as far as it may.
            if name.startswith("RLIMIT_") and name != "RLIMIT_NOFILE"
        },
        "variables": {
            name: value
            for name, value in sorted(environment.items())
            if name.startswith(_READ_AT_LOAD) and name not in _EXEMPT
        },
    }


def bounded_spin(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that bound the spinning of idle threads; none if the user set them.

    To be set before the library is loaded: it reads them once.
    """
    if any(name in environment for name in _SPIN_VARIABLES):
        return {}
    return {"GOMP_SPINCOUNT": str(SPIN_COUNT)}


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Name the first part of their surroundings that differs from ours; None: all are the same."""
    for name in theirs:
        if theirs[name] != ours.get(name):
            return name
    return None


@lru_cache(maxsize=None)  # noqa: UP033 (an agent may run on Python 3.8)
def _packages() -> list[str | None]:
    """Return where a fork server's packages come from; located, never imported."""
    specs = [find_spec(name) for name in _PACKAGES]
    return [spec.origin if spec is not None else None for spec in specs]


def _umask() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((line for line in lines if line.startswith("Umask:")), "")


def to_socket_name(address: str) -> str:
    """Turn an address such as @phalanx-1f… into a name without a file (Linux only)."""
    return "\0" + address.removeprefix("@")


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the other end, as the kernel knows it."""
    size = _PEER.size
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def send_request(
    connection: socket.socket, request: ForkRequest, descriptors: Sequence[int]
) -> None:
    """Send a request with its standard streams."""
    _send(connection, asdict(request), descriptors)


def receive_request(connection: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Read a request and its standard streams; None: the launcher is gone.

    Raises:
        OSError: The connection broke, or the message is no request of ours; its streams are closed.
    """
    received = receive(connection, NUM_STREAMS)
    if received is None:
        return None
    message, descriptors = received
    request = _to_request(message)
    if request is None or len(descriptors) != NUM_STREAMS:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError("a message that is no request of ours")
    return request, descriptors


def _to_request(message: object) -> ForkRequest | None:
    """Return the request in a message; None: it is none, or its parts are of other types."""
    kinds = {"module": str, "directory": str, "environment": dict, "cpus": list}
    kinds["surroundings"] = dict
    if not isinstance(message, dict) or message.keys() != kinds.keys():
        return None
    if not all(isinstance(message[name], kind) for name, kind in kinds.items()):
        return None
    variables = message["environment"]
    texts = [*variables, *variables.values()]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        return None
    if not message["cpus"] or not all(isinstance(core, int) for core in message["cpus"]):
        return None
    return ForkRequest(**message)


def send(
    connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    """Send one message."""
    _send(connection, message, descriptors)


def _send(
    connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int]
) -> None:
    content = json.dumps(message).encode()
    data = _LENGTH.pack(len(content)) + content
    # The descriptors travel with the first byte; the rest may need more than one call.
    sent = socket.send_fds(connection, [data], list(descriptors))
    if sent < len(data):
        # Not without a rest: even an empty call fails once the other end has answered and gone.
        connection.sendall(data[sent:])


def receive(
    connection: socket.socket, num_descriptors: int = 0
) -> tuple[dict[str, Any], list[int]] | None:
    """Read one message with its descriptors; None: the other end is closed.

    Raises:
        OSError: The connection broke, or the message is malformed.
    """
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, num_descriptors)
    if not head:
        return None
    try:
        head += _read(connection, _LENGTH.size - len(head))
        [length] = _LENGTH.unpack(head)
        if length > _MAX_BYTES:
            raise OSError(f"a message of {length} bytes is none of ours")
        return json.loads(_read(connection, length)), descriptors
    except (OSError, ValueError, RecursionError) as error:
        # Whoever sent them is not served: they must not stay open here.
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError(f"the message is none of ours ({error})") from error


def _read(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = connection.recv(count - len(content))
        if not part:
            raise ConnectionResetError("the connection ended within a message")
        content += part
    return content
