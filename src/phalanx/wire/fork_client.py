"""The launcher's end of a fork server: start one, ask it for processes, watch and signal them.

`launch.fork_server` uses it for runs on this machine, and the agent on the machines of a pool: it
is sent along, so it imports the standard library and `wire.forking` alone, and parses on Python
3.8. Where a fork would differ from a cold start `ForkRefused` is raised.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, BinaryIO, Protocol

from phalanx.wire.forking import ForkRequest, peer_user, receive, send_request, to_socket_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names without files, descriptors of processes and the signal of a dead parent are Linux'; older
# interpreters cannot send descriptors.
FORK_IS_POSSIBLE = sys.platform.startswith("linux") and hasattr(socket, "send_fds")
SERVER_MODULE = "phalanx.worker.fork_server"
ANSWER_S = 120.0
"""Imports of a fork server on a machine that is busy; afterwards processes start cold."""
# A request fits into the socket's buffer, so a server that still imports holds nobody up.
_SEND_S = 5.0
_STOP_S = 10.0
# From the end of a process until its fork server has told how it ended.
_REPORT_S = 5.0


class ForkRefused(Exception):
    """A process cannot be forked as it would start cold; the reason is in words."""


class ChildProcess(Protocol):
    """What a launcher needs of a process that it started, cold or warm."""

    pid: int
    stdin: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number after a signal, or None; no wait."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises `subprocess.TimeoutExpired`."""

    def send_signal(self, sig: int) -> None:
        """Send a signal unless the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""


class ForkServer:
    """A fork server process; `start` returns at once, the first fork waits for its imports.

    Args:
        python: Its interpreter; None: the one that runs this.
        environment: Its variables; None: those of this process.
        directory: Where it runs; None: where this process does.
    """

    def __init__(
        self,
        *,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        self._python = python or sys.executable
        self._environment = environment
        self._directory = directory
        self.address = f"@phalanx-{secrets.token_hex(16)}"
        """What others connect to; no file, so nothing is left behind however it ends."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start it in a session of its own, with standard input as its lifeline.

        Raises:
            OSError: The system refuses a new process.
        """
        # The system ends a child with the *thread* that started it, so only the main one is named.
        is_main = threading.current_thread() is threading.main_thread()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(to_socket_name(self.address))
            # Launchers connect while it still imports; the kernel holds them.
            listener.listen(socket.SOMAXCONN)
            command = [self._python, "-m", SERVER_MODULE, str(listener.fileno())]
            self._process = subprocess.Popen(
                [*command, str(os.getpid() if is_main else 0)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(listener.fileno(),),
                cwd=self._directory,
                env=self._environment,
            )

    def close(self) -> None:
        """End it, and with it whatever it forked that still runs."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        # It may be in the middle of its imports, and has nothing to put in order.
        self._process.kill()
        self._process.wait(_STOP_S)


class ForkedProcess:
    """A process that a fork server started for this launcher; as `subprocess.Popen` to its user.

    Its parent is the fork server, whose end kills it; so does the end of this process.
    """

    def __init__(
        self, pid: int, parent_pid: int, *, pidfd: int, connection: socket.socket, stdin: BinaryIO
    ) -> None:
        self.pid = pid
        self.parent_pid = parent_pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._connection = connection
        self._ended_s: float | None = None

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number after a signal, or None; no wait."""
        if self.returncode is None:
            self._look(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: It still runs after that many seconds.
        """
        giving_up = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.returncode is None:
            left = giving_up - time.monotonic()
            self._look(max(0.0, min(left, _REPORT_S)))
            if self.returncode is None and left <= 0.0:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal unless the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # By descriptor: a number may belong to another process by now.
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float) -> None:
        """Wait until the process or its fork server ends, and take the report if it is there."""
        # Poll, not select: a controller may hold more than 1024 descriptors.
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        if self._ended_s is None:
            # Only until it has ended, or no call would ever wait for the report.
            poller.register(self._pidfd, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(timeout_s * 1000)}
        if self._connection.fileno() in ready:
            self._end(self._read_report())
            return
        now = time.monotonic()
        if self._pidfd in ready:
            self._ended_s = now
        elif self._ended_s is not None and now - self._ended_s >= _REPORT_S:
            # A frozen fork server reports nothing, and only SIGKILL needs no report.
            self._end(-signal.SIGKILL)

    def _read_report(self) -> int:
        report = None
        with contextlib.suppress(OSError, ValueError):
            report = receive(self._connection)
        if report is not None:
            return int(report[0]["exit_code"])
        # The fork server is gone. The system has killed the process with it, unless it had not yet
        # asked for that; in either case SIGKILL is what ended it.
        self.kill()
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        poller.poll(_STOP_S * 1000)
        return -signal.SIGKILL

    def _end(self, code: int) -> None:
        self.returncode = code
        self._connection.close()
        os.close(self._pidfd)


class PendingFork:
    """A request that a fork server has not answered yet; ends by `take` or `cancel`, once."""

    def __init__(self, connection: socket.socket, stdin: BinaryIO) -> None:
        self._connection = connection
        self._stdin = stdin

    @property
    def is_answered(self) -> bool:
        """Whether `take` returns, or raises, without waiting."""
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        return bool(poller.poll(0))

    def take(self, limit_s: float = ANSWER_S) -> ForkedProcess:
        """Wait for the answer, and return the process.

        Raises:
            ForkRefused: The fork server is gone, too slow, or refuses; there will be no process.
        """
        self._connection.settimeout(limit_s)
        try:
            answer = receive(self._connection, num_descriptors=1)
        except (OSError, ValueError) as error:
            self.cancel()
            raise ForkRefused(f"the fork server failed ({error})") from error
        if answer is None or "refused" in answer[0]:
            self.cancel()
            raise ForkRefused(answer[0]["refused"] if answer else "the fork server is gone")
        message, [pidfd] = answer
        self._connection.settimeout(None)
        return ForkedProcess(
            message["pid"],
            message["parent_pid"],
            pidfd=pidfd,
            connection=self._connection,
            stdin=self._stdin,
        )

    def cancel(self) -> None:
        """Give the process up; the fork server kills it if it has forked it, or is about to."""
        self._connection.close()
        self._stdin.close()


def request_fork(address: str, request: ForkRequest, output: int) -> PendingFork:
    """Ask a fork server for a process, and do not wait for it.

    Args:
        address: Of the fork server, which may still be importing.
        request: The process.
        output: Descriptor that takes standard output and standard error.

    Raises:
        ForkRefused: No fork server is there.
    """
    connection = _connect(address)
    reading, writing = os.pipe()
    try:
        send_request(connection, request, [reading, output, output])
    except OSError as error:
        connection.close()
        os.close(writing)
        raise ForkRefused(f"the fork server failed ({error})") from error
    finally:
        # Only the process may hold this end, or it would never see that the pipe broke.
        os.close(reading)
    return PendingFork(connection, os.fdopen(writing, "wb"))


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_SEND_S)
        connection.connect(to_socket_name(address))
        if peer_user(connection) != os.getuid():
            raise PermissionError("it belongs to another user")
    except OSError as error:
        connection.close()
        raise ForkRefused(f"no fork server answers ({error})") from error
    return connection
