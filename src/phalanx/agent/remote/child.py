"""Start one process of a run on this machine, warm where it can be, and follow it to its end.

Part of the program that is sent to machines. The fork server of a machine and run is started with
the command, variables and directory of a cold process, the run's token among them: what it forks
is found and killed by that token as everything else of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.wire.fork_client import (
    ANSWER_S,
    FORK_IS_POSSIBLE,
    ForkRefused,
    ForkServer,
    PendingFork,
    request_fork,
)
from phalanx.wire.forking import ForkRequest, inherited

if TYPE_CHECKING:
    from phalanx.wire.fork_client import ChildProcess

# What a shell says when a command cannot be run.
_NOT_STARTED = 127
# An answer that has begun to come is small.
_TAKE_S = 2.0


class MachineForkServer:
    """The fork server of this machine for one run; the first request starts it."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._origin: tuple[object, ...] = ()

    def request(self, order: dict[str, Any], variables: dict[str, str], output: int) -> PendingFork:
        """Ask for the process of an order.

        Raises:
            ForkRefused: It has to be started cold.
        """
        if not FORK_IS_POSSIBLE:
            raise ForkRefused("this system, or its Python, cannot hand processes on")
        python, _, module = order["command"]
        directory = _directory(order)
        origin = (python, directory, order["environment"])
        if self._server is None:
            # Never a second one: what ended the first, or kept it from importing, is still there.
            self._server = ForkServer(python=python, environment=variables, directory=directory)
            self._origin = origin
            # Whatever the system refuses here it refuses to the cold process too.
            with contextlib.suppress(OSError):
                self._server.start()
        if origin != self._origin:
            raise ForkRefused("it has another command than the fork server")
        request = ForkRequest(
            module=module,
            directory=directory,
            environment=variables,
            cpus=sorted(os.sched_getaffinity(0)),
            surroundings=inherited(variables),
        )
        return request_fork(self._server.address, request, output)


class Child:
    """A process of the run, from its order to its end.

    A warm start is not waited for: the fork server may still import, and meanwhile this program has
    to show life and to obey. Until it has answered, the process counts as running.

    Args:
        order: What to start.
        variables: All variables of the process.
        log: File that takes standard output and standard error.
    """

    def __init__(self, order: dict[str, Any], *, variables: dict[str, str], log: Path) -> None:
        self.name: str = order["name"]
        self.serial: int = order["serial"]
        self.cold_because: str | None = None
        """Why a process that should have been forked was started by command."""
        self._order = order
        self._variables = variables
        self._log = log
        self._process: ChildProcess | None = None
        self._fork: PendingFork | None = None
        self._asked_s = 0.0
        self._code: int | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None: the fork server has not answered yet."""
        return self._process.pid if self._process is not None else None

    @property
    def is_pending(self) -> bool:
        """Whether the fork server has yet to answer."""
        return self._fork is not None

    def start(self, server: MachineForkServer) -> None:
        """Start it cold, or ask for it if the order says so.

        Raises:
            OSError: It cannot be started.
        """
        if self._order.get("warm"):
            try:
                with self._log.open("ab") as log:
                    self._fork = server.request(self._order, self._variables, log.fileno())
                self._asked_s = time.monotonic()
                return
            except ForkRefused as refusal:
                self.cold_because = str(refusal)
        self._start_cold()

    def settle(self) -> None:
        """Take the answer of the fork server if it is there; a refusal means a cold start."""
        if self._fork is None:
            return
        if not self._fork.is_answered and time.monotonic() - self._asked_s < ANSWER_S:
            return
        fork, self._fork = self._fork, None
        try:
            forked = fork.take(_TAKE_S)
        except ForkRefused as refusal:
            self.cold_because = str(refusal)
            try:
                self._start_cold()
            except OSError as error:
                # The order was answered long ago: the log and the exit code have to say it.
                with self._log.open("a") as log:
                    log.write(f"{self.name} cannot be started: {error}\n")
                self._code = _NOT_STARTED
        else:
            # It dies with the fork server, which dies with this program.
            self._tie(forked, forked.parent_pid)

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number after a signal, or None; no wait."""
        return self._process.poll() if self._process is not None else self._code

    def wait(self, limit_s: float) -> None:
        """Wait for the end; raises `subprocess.TimeoutExpired`."""
        if self._process is not None:
            self._process.wait(limit_s)

    def signal(self, number: int) -> None:
        """Send a signal to the process and to what it has started in its session."""
        if self._fork is not None and number in (signal.SIGTERM, signal.SIGKILL):
            self._fork.cancel()
            self._fork = None
            self._code = -number
        if self._process is None:
            return
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                # Ended, or forked a moment ago and not yet the head of its session.
                self._process.send_signal(number)

    def close(self) -> None:
        """Close the lifeline of a process that has ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _start_cold(self) -> None:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._order["command"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=_directory(self._order),
                env=self._variables,
                start_new_session=True,
            )
        self._tie(process, os.getpid())

    def _tie(self, process: ChildProcess, parent_pid: int) -> None:
        """Give a process its spec on standard input, which stays open as its lifeline."""
        self._process = process
        spec = {**self._order["spec"], "parent_pid": parent_pid}
        assert process.stdin is not None
        # A process that died at once breaks the pipe; its exit code is the news.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(spec).encode() + b"\n")
            process.stdin.flush()


def _directory(order: dict[str, Any]) -> str:
    return str(Path(order["directory"]).expanduser())
