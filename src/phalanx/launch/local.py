"""Start processes on this machine, warm or by command; each gets its WorkerSpec on stdin.

A warm process is forked from one that has already imported the framework (`fork_server`); where a
fork would differ from a cold start, the process is started by command. Standard input stays open as
a lifeline: it closes when the controller ends, and the worker then exits. Workers run in separate
sessions, so Ctrl-C reaches only the controller, which then ends them in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

from phalanx.data.sources import open_source
from phalanx.errors import LaunchError
from phalanx.launch.allocation import Allocation, LocalAllocation
from phalanx.launch.base import Launcher, LaunchRequest, ProcessStatus, WorkerGroup
from phalanx.launch.fork_server import WarmStart
from phalanx.records.log import read_tail
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.deadline import Deadline
from phalanx.wire.fork_client import ChildProcess

_KILL_LIMIT_S = 10.0


class LocalLauncher(Launcher):
    """Start workers as child processes."""

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__(request)
        self._logs = Path()

    @override
    def check(self) -> None:
        # Reports missing files before anything is started.
        open_source(self.request.job.data, data_root=self.request.data_root)

    @override
    def allocate(self, run: RunDir) -> Allocation:
        self._logs = run.path / "logs"
        request = self.request
        return LocalAllocation(
            request.job,
            run_dir=run.path,
            data_root=request.data_root,
            cache_root=request.cache_root,
        )

    @override
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        group = LocalGroup(self._logs)
        try:
            group.prepare(specs)
            for spec in specs:
                group.add(spec)
        except BaseException:
            group.stop(grace_s=0.0)
            raise
        return group


class LocalGroup(WorkerGroup):
    """Child processes on this machine."""

    def __init__(self, logs: Path, warm: WarmStart | None = None) -> None:
        self._logs = logs
        self._warm = warm or WarmStart()
        self._children: dict[str, ChildProcess] = {}

    def prepare(self, specs: Sequence[WorkerSpec]) -> None:
        """Start the fork server that the processes of these specs share."""
        self._warm.prepare(sum(spec.can_fork for spec in specs))

    @override
    def add(self, spec: WorkerSpec) -> None:
        with self._log_path(spec.process).open("ab") as log:
            forked = self._warm.fork(spec.module, log.fileno()) if spec.can_fork else None
            child: ChildProcess = forked or _start_cold(spec, log)
        if forked is not None and spec.parent_pid == os.getpid():
            # Its parent is the fork server, which ends when this process does.
            spec = spec.model_copy(update={"parent_pid": forked.parent_pid})
        self._children[spec.process] = child
        # A process that exited already breaks the pipe; poll() reports its exit code and log.
        with contextlib.suppress(BrokenPipeError):
            lifeline = _lifeline(child)
            lifeline.write(spec.model_dump_json(by_alias=True).encode() + b"\n")
            lifeline.flush()

    @override
    def poll(self) -> list[ProcessStatus]:
        return [ProcessStatus(name, child.poll()) for name, child in self._children.items()]

    @override
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        return read_tail(self._log_path(process), num_lines)

    @override
    def kill(self, process: str) -> None:
        child = self._children[process]
        child.kill()
        _reap(process, child)

    @override
    def stop(self, grace_s: float) -> None:
        deadline = Deadline.after(grace_s, "workers to end")
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                # A stopped process handles SIGTERM only after SIGCONT.
                child.send_signal(signal.SIGCONT)
        for name, child in self._children.items():
            try:
                child.wait(deadline.remaining_s)
            except subprocess.TimeoutExpired:
                child.kill()
            _reap(name, child)
        self._warm.close()

    def _log_path(self, process: str) -> Path:
        return self._logs / f"{process}.log"


def _start_cold(spec: WorkerSpec, log: BinaryIO) -> ChildProcess:
    command = [sys.executable, "-m", spec.module]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(
            f"cannot start {spec.process} with {command[0]}: {error.strerror}",
            process=spec.process,
        ) from error


def _lifeline(child: ChildProcess) -> BinaryIO:
    assert child.stdin is not None
    return child.stdin  # type: ignore[return-value]  # Popen types its pipes as IO[bytes]


def _reap(name: str, child: ChildProcess) -> None:
    """Wait for a killed process and close its lifeline."""
    try:
        child.wait(_KILL_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"{name} (pid {child.pid}) is still there {_KILL_LIMIT_S:g} s after SIGKILL; "
            "it hangs in the kernel, probably on a dead disk",
            process=name,
        ) from error
    finally:
        with contextlib.suppress(BrokenPipeError):
            _lifeline(child).close()
