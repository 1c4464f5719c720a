"""What a fault does to the process that it happens in; see `support.faults`.

Nothing here imitates an error: connections are really shut down, writing really fails in the
kernel, a message is really on the wire twice.
"""

from __future__ import annotations

import builtins
import io
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import zmq

Connection = Literal["control", "bulk", "all"]
# The thread of the control channel in every process; see `phalanx.wire.control`.
_CONTROL_THREAD = "control"


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to several processes, to this one last."""
    for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def find_process(name: str, folder: Path) -> int | None:
    """The process that prints to the log of this name, in a run below the folder."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdigit():
                continue
            log = Path(os.readlink(entry / "fd" / "1"))
            if log.name == f"{name}.log" and log.is_relative_to(folder):
                return int(entry.name)
    return None


def cut_connections(which: Connection, control_address: str) -> int:
    """Shut down connections of this process, at both ends; returns how many.

    Args:
        which: `control`: to or from the controller; `bulk`: all others.
        control_address: Where the controller listens; empty: this is the controller.
    """
    port = int(control_address.rpartition(":")[2] or 0)
    count = 0
    for connection in _connections():
        with connection:
            is_tcp = connection.family == socket.AF_INET
            # Every connection of the controller over TCP is one of a process to it.
            to_control = is_tcp and (not port or connection.getpeername()[1] == port)
            if which == "all" or to_control == (which == "control"):
                # Gone in the same moment.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _connections() -> Iterator[socket.socket]:
    """Second descriptors of every stream that this process is connected by."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
            try:
                names = {connection.getpeername(), connection.getsockname()}
            except OSError:
                names = set()  # it listens, or is connected no more
            # Without a name at either end: a pair by which threads of this process wake each other.
            if names - {"", b""}:
                yield connection
            else:
                connection.close()


def send_next_twice(which: Connection) -> None:
    """Have the next whole message of the control channel, or of any other socket, sent twice."""
    original: Callable[..., Any] = zmq.Socket.send
    parts: dict[zmq.Socket[bytes], list[bytes]] = {}
    lock = threading.Lock()

    def is_meant(source: zmq.Socket[bytes]) -> bool:
        # Others are wake-ups inside the process.
        if source.type not in (zmq.DEALER, zmq.ROUTER):
            return False
        is_control = threading.current_thread().name == _CONTROL_THREAD
        return which == "all" or is_control == (which == "control")

    def send(self: zmq.Socket[bytes], data: Any, flags: int = 0, **settings: Any) -> Any:
        if not is_meant(self):
            return original(self, data, flags, **settings)
        # A copy before it is sent: memory that was lent may change once it is free again.
        content = bytes(data.buffer if isinstance(data, zmq.Frame) else data)
        result = original(self, data, flags, **settings)
        parts.setdefault(self, []).append(content)
        if not flags & zmq.SNDMORE:
            message = parts.pop(self)
            with lock:
                is_first = zmq.Socket.send is send
                zmq.Socket.send = original  # type: ignore[method-assign]
            if is_first:
                # A full queue takes no second one.
                with suppress(zmq.ZMQError):
                    for index, part in enumerate(message):
                        more = zmq.SNDMORE if index + 1 < len(message) else 0
                        original(self, part, zmq.NOBLOCK | more)
        return result

    zmq.Socket.send = send  # type: ignore[method-assign]


def fill_disk(seconds: float) -> None:
    """Make every write of this process to a file fail in the kernel, for some time."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    _later(seconds, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))


def slow_disk_down(seconds: float) -> None:
    """Make fsync, and opening a file to write to it, take this much longer in this process."""
    pause = threading.Event()

    def slowly(function: Callable[..., Any], *, only_writing: bool) -> Callable[..., Any]:
        def slow(*arguments: Any, **settings: Any) -> Any:
            mode = settings.get("mode", arguments[1] if len(arguments) > 1 else "r")
            if not only_writing or set(str(mode)) & set("wax+"):
                pause.wait(seconds)
            return function(*arguments, **settings)

        return slow

    os.fsync = slowly(os.fsync, only_writing=False)
    # pathlib calls the one, everybody else the other.
    io.open = slowly(io.open, only_writing=True)  # type: ignore[assignment]
    builtins.open = slowly(builtins.open, only_writing=True)  # type: ignore[assignment]


def set_clock(seconds: float) -> None:
    """Set the wall clock of this process; its monotonic clock goes on."""
    original = time.time
    time.time = lambda: original() + seconds


def _later(seconds: float, action: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
