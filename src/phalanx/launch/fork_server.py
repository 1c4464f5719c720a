"""Start warm processes: a fork server that has imported the framework, and its client.

A run on this machine owns a fork server or shares one owned by a study, a test session or a program
that trains many times. When the owner ends, the fork server and every process that it forked end;
when a client ends, the processes that it requested end. `ForkRefused` is raised where a fork would
differ from a cold start, and the caller starts the process cold.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, BinaryIO, Protocol

from phalanx.errors import SpecError
from phalanx.wire.forking import (
    ForkRequest,
    peer_user,
    receive,
    send_request,
    surroundings,
    to_socket_name,
)

_log = logging.getLogger(__name__)

OWN, OFF = "own", "off"
# Abstract sockets, pidfds and the parent-death signal exist on Linux only.
_POSSIBLE = sys.platform.startswith("linux")
SERVER_MODULE = "phalanx.worker.fork_server"
# Import time allowed on a busy machine; after that, processes start cold.
_START_S = 120.0
_STOP_S = 10.0
# From the end of a process until its fork server has reported the exit code.
_REPORT_S = 5.0


class ForkRefused(Exception):
    """A fork would differ from a cold start; the message holds the reason."""


class ChildProcess(Protocol):
    """Interface of a started process, cold or warm."""

    pid: int
    stdin: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code (negative signal number after a signal) or None, without waiting."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises `subprocess.TimeoutExpired`."""

    def send_signal(self, sig: int) -> None:
        """Send a signal unless the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""


class ForkServer:
    """A fork server process; `start` returns immediately, the first fork waits for its imports."""

    def __init__(self) -> None:
        self.address = f"@phalanx-{secrets.token_hex(16)}"
        """Abstract socket address; no file, so nothing remains however the process ends."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start it in a new session, with standard input as its lifeline.

        Raises:
            OSError: The system refuses a new process.
        """
        # The parent-death signal follows the *thread* that forked: only the main one may use it.
        is_main = threading.current_thread() is threading.main_thread()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(to_socket_name(self.address))
            # Listen before the imports, so that clients may connect during them.
            listener.listen(socket.SOMAXCONN)
            command = [sys.executable, "-m", SERVER_MODULE, str(listener.fileno())]
            self._process = subprocess.Popen(
                [*command, str(os.getpid() if is_main else 0)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(listener.fileno(),),
            )

    def close(self) -> None:
        """Kill it, and with it every process that it forked."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        # SIGKILL: it may be in the middle of its imports and has no state to clean up.
        self._process.kill()
        self._process.wait(_STOP_S)


class ForkedProcess:
    """Process started by a fork server, with the interface of `subprocess.Popen`.

    Its parent is the fork server. It is killed when the fork server or this process ends.
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
        """Return the exit code (negative signal number after a signal) or None, without waiting."""
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
                # By pidfd: the pid may have been reused by another process.
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float) -> None:
        """Wait until the fork server reports the exit code or is gone."""
        # Poll, not select: a controller may hold more than 1024 descriptors.
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        if poller.poll(timeout_s * 1000):
            self._end(self._read_report())
        elif self._is_gone():
            now = time.monotonic()
            self._ended_s = self._ended_s or now
            if now - self._ended_s > _REPORT_S:
                # A frozen fork server does not report the end: assume SIGKILL.
                self._end(-signal.SIGKILL)

    def _read_report(self) -> int:
        report = None
        with contextlib.suppress(OSError, ValueError):
            report = receive(self._connection)
        if report is not None:
            return int(report[0]["exit_code"])
        # The fork server is gone. The kernel killed the process with it, unless the parent-death
        # signal was not yet set; SIGKILL below covers that case, so the exit code is the same.
        self.kill()
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        poller.poll(_STOP_S * 1000)
        return -signal.SIGKILL

    def _is_gone(self) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def _end(self, code: int) -> None:
        self.returncode = code
        self._connection.close()
        os.close(self._pidfd)


def fork_process(address: str, module: str, output: int) -> ForkedProcess:
    """Start `python -m module` warm, with this process's directory, environment and affinity.

    Args:
        address: Address of the fork server.
        module: Module to run.
        output: Descriptor for standard output and standard error.

    Raises:
        ForkRefused: The fork server is gone, or a fork would differ from a cold start.
    """
    environment = dict(os.environ)  # noqa: TID251 (what children inherit)
    request = ForkRequest(
        module=module,
        directory=os.getcwd(),
        environment=environment,
        cpus=sorted(os.sched_getaffinity(0)),
        surroundings=surroundings(environment),
    )
    connection = _connect(address)
    reading, writing = os.pipe()
    try:
        try:
            send_request(connection, request, [reading, output, output])
        finally:
            # Only the child may hold this end; otherwise the writer would never see a broken pipe.
            os.close(reading)
        answer = receive(connection, num_descriptors=1)
    except (OSError, ValueError) as error:
        connection.close()
        os.close(writing)
        raise ForkRefused(f"the fork server failed ({error})") from error
    if answer is None or "refused" in answer[0]:
        connection.close()
        os.close(writing)
        raise ForkRefused(answer[0]["refused"] if answer else "the fork server is gone")
    message, [pidfd] = answer
    connection.settimeout(None)
    return ForkedProcess(
        message["pid"],
        message["parent_pid"],
        pidfd=pidfd,
        connection=connection,
        stdin=os.fdopen(writing, "wb"),
    )


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_START_S)
        connection.connect(to_socket_name(address))
        if peer_user(connection) != os.getuid():
            raise PermissionError("it belongs to another user")
    except OSError as error:
        connection.close()
        raise ForkRefused(f"no fork server answers ({error})") from error
    return connection


class WarmStart:
    """Warm start of one group of processes, with fallback to cold starts.

    Args:
        setting: `OWN`, `OFF` or the address of a fork server; None: as set by `use_fork_server`.
    """

    def __init__(self, setting: str | None = None) -> None:
        self._setting = setting or _Chosen.setting
        shared = _POSSIBLE and self._setting.startswith("@")
        self._address = self._setting if shared else None
        self._server: ForkServer | None = None

    def prepare(self, num_processes: int) -> None:
        """Start the imports; skipped for a single process, which would gain nothing."""
        if self._setting == OWN and num_processes > 1 and _POSSIBLE:
            self._server = ForkServer()
            # A system error here will recur in the cold start, which reports it.
            with contextlib.suppress(OSError):
                self._server.start()
                self._address = self._server.address

    def fork(self, module: str, output: int) -> ForkedProcess | None:
        """Start a process warm; None: start it cold."""
        if self._address is None:
            return None
        try:
            return fork_process(self._address, module, output)
        except ForkRefused as refusal:
            _log.info("a process starts cold: %s", refusal)
            return None

    def close(self) -> None:
        """End the fork server of this group and any process of the group that still runs."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._address = None


class _Chosen:
    """Process-wide setting of `use_fork_server`."""

    setting = OWN


def use_fork_server(setting: str) -> None:
    """Set how runs of this process start workers; called by the entry point of a program.

    Args:
        setting: `OWN`: a fork server per run. `OFF`: cold starts only. Otherwise the address of a
        fork server with another owner.

    Raises:
        SpecError: The setting is none of these.
    """
    if setting not in (OWN, OFF) and not setting.startswith("@"):
        raise SpecError(
            f"PHALANX_FORK_SERVER is '{setting}'; set it to own, off, or an address that begins "
            "with @"
        )
    _Chosen.setting = setting


def chosen_fork_server() -> str:
    """Return the setting of `use_fork_server`."""
    return _Chosen.setting


@contextlib.contextmanager
def warm_workers(*, useful: bool = True) -> Iterator[str]:
    """Share one fork server among all runs in the block, unless another was set; yield the setting.

    Args:
        useful: False: nothing in the block can be forked, so none is started.
    """
    before = _Chosen.setting
    if before != OWN or not useful or not _POSSIBLE:
        yield before
        return
    server = ForkServer()
    try:
        # On failure runs fall back to their own fork server or cold starts, which report it.
        with contextlib.suppress(OSError):
            server.start()
            _Chosen.setting = server.address
        yield _Chosen.setting
    finally:
        _Chosen.setting = before
        server.close()
