"""A TCP relay between two ends that can be cut: the network as a test wants it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Relay:
    """Passes bytes on between clients and one port of this machine; use as a context manager.

    Args:
        port: Where to pass them on to.
        cut_after: Bytes from clients after which the connection that brings the next is cut, once.
        stays_cut: Nothing passes after that.
    """

    def __init__(self, port: int, *, cut_after: int = 1 << 62, stays_cut: bool = False) -> None:
        self.port = port
        self._cut_after = cut_after
        self._stays_cut = stays_cut
        self._passed = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.num_cuts = 0
        self.num_connections = 0
        self.recorded: list[bytearray] = []
        """What came from clients, by connection."""

    def __enter__(self) -> Relay:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing alone does not wake a thread that waits in accept or recv.
        for one in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10.0)

    def cut(self) -> None:
        """Break every connection now; new ones pass."""
        with self._lock:
            self.num_cuts += 1
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _start(self, target: object, *arguments: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, name="relay")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.num_cuts and self._stays_cut:
                    near.close()
                    continue
                self.num_connections += 1
                self.recorded.append(bytearray())
                far = socket.create_connection(("127.0.0.1", self.port))
                self._open += [near, far]
                self._start(self._pass, near, far, self.recorded[-1])
                self._start(self._pass, far, near, None)

    def _pass(self, source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if record is not None:
                    record += data
                    if self._is_cut_here(len(data)):
                        break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _is_cut_here(self, num_bytes: int) -> bool:
        with self._lock:
            self._passed += num_bytes
            if self._passed < self._cut_after or self.num_cuts:
                return False
            self.num_cuts += 1
            return True
