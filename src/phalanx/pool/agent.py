"""A conversation with one machine: the probe is sent over ssh, then questions and answers.

One ssh process per machine lives as long as the conversation. If this process dies, however it
dies, ssh's input closes, and with it the process on the other side ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from importlib import resources
from types import TracebackType
from typing import IO, Any

import msgspec

from phalanx.errors import LaunchError
from phalanx.pool.facts import Clock, Fault
from phalanx.pool.remote import MARKER
from phalanx.pool.ssh import SshRoute, explain
from phalanx.wire.deadline import Deadline

_NUM_CLOCK_QUESTIONS = 8
_START_S = 30.0
_CLOSE_S = 3.0
# Reads as many bytes as the first line says and runs them; the rest of the input is questions.
_LOADER = (
    "import sys; n = int(sys.stdin.buffer.readline()); "
    'exec(compile(sys.stdin.buffer.read(n), "phalanx-probe", "exec"))'
)


class MachineFault(LaunchError):
    """A machine could not be reached, or stopped answering; `fault` says why."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.fault: Fault = facts["fault"]


class Agent:
    """The far side of one conversation; a context manager that leaves no process behind.

    Args:
        route: How to get there.
    """

    def __init__(self, route: SshRoute) -> None:
        self._route = route
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._pending = b""
        self._num_asked = 0
        self._is_idle = True

    def __enter__(self) -> Agent:
        source = resources.files("phalanx.pool").joinpath("remote.py").read_bytes()
        command = self._route.command(self._route.python("-u", "-c", _LOADER))
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
        )
        with contextlib.suppress(BrokenPipeError):  # the first question tells why
            self._stdin.write(b"%d\n" % len(source) + source)
            self._stdin.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._said is not None
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        if not self._is_idle:
            # It would notice only after its present work; without ssh it ends then, too.
            self._process.kill()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()

    def ask(self, question: dict[str, object], limit_s: float) -> Any:
        """Send a question and wait for its answer.

        Raises:
            MachineFault: The machine is not there, or did not answer in time.
            LaunchError: It answered that it could not do what was asked.
        """
        deadline = Deadline.after(limit_s, f"an answer of {self._route.machine.title}")
        self._num_asked += 1
        self._is_idle = False
        try:
            self._stdin.write(msgspec.json.encode({**question, "id": self._num_asked}) + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise self._fault(deadline) from None
        answer = json.loads(self._line(deadline))
        while answer["id"] != self._num_asked:  # to a question that had been given up
            answer = json.loads(self._line(deadline))
        self._is_idle = True
        if "error" in answer:
            raise LaunchError(f"{self._route.machine.title}: {answer['error']}")
        return answer["ok"]

    def measure_clock(self) -> Clock:
        """Compare clocks as NTP does; the quickest of some exchanges counts.

        Raises:
            MachineFault: The machine is not there, or did not answer in time.
        """
        readings = []
        for _ in range(_NUM_CLOCK_QUESTIONS):
            asked = time.time()
            theirs = self.ask({"do": "clock"}, _START_S)["time_s"]
            now = time.time()
            readings.append(Clock(offset_s=theirs - (asked + now) / 2, error_s=(now - asked) / 2))
        return min(readings, key=lambda one: one.error_s)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    def _line(self, deadline: Deadline) -> str:
        """The next line with our marker; what login scripts print is passed over."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._pending.partition(b"\n")
                if newline:
                    self._pending = rest
                    text = line.decode(errors="replace")
                    if text.startswith(MARKER):
                        return text.removeprefix(MARKER)
                    continue
                if not selector.select(deadline.remaining_s):
                    raise self._fault(deadline)
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self._fault(deadline)
                self._pending += data

    def _fault(self, deadline: Deadline) -> MachineFault:
        assert self._process is not None
        assert self._said is not None
        exit_code: int | None = None
        if not deadline.expired:
            with contextlib.suppress(subprocess.TimeoutExpired):
                exit_code = self._process.wait(_CLOSE_S)
        self._said.seek(0)
        fault = explain(self._route.machine, self._said.read().decode(errors="replace"), exit_code)
        return MachineFault(f"{fault.machine}: {fault.reason}", fault=fault)
