"""Start processes on this machine, warm or by command; each gets its WorkerSpec on stdin.

A warm process is forked from one that has already imported the framework (`fork_server`); where a
fork would differ from a cold start, the process is started by command. Standard input stays open as
a lifeline: it closes when the controller ends, and the worker then exits. Workers run in separate
sessions, so Ctrl-C reaches only the controller, which then ends them in order. What a worker has
started itself ends with it: by its session, or by a mark in the environment if it left that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

from phalanx.agent.remote.marked import RUN_VARIABLE, kill_marked
from phalanx.data.sources import open_source
from phalanx.errors import LaunchError
from phalanx.launch.allocation import Allocation, LocalAllocation
from phalanx.launch.base import Launcher, LaunchRequest, ProcessStatus, WorkerGroup
from phalanx.launch.fork_server import WarmStart
from phalanx.launch.job_check import check_fit
from phalanx.launch.private_network import PrivateNetwork, opens_ports, trusted_network_note
from phalanx.records.log import read_tail
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.deadline import Deadline
from phalanx.wire.descriptors import ensure_descriptors
from phalanx.wire.fork_client import ChildProcess

_KILL_LIMIT_S = 10.0


class LocalLauncher(Launcher):
    """Start workers as child processes."""

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__(request)
        self._logs = Path()
        self._network = PrivateNetwork()

    @override
    def check(self) -> None:
        request = self.request
        if opens_ports(request.job):
            self._keep_private()
        ensure_descriptors(num_machines=0, num_processes=request.job.processes.total)
        # Reports missing files before anything is started.
        open_source(request.job.data, data_root=request.data_root, cache_root=request.cache_root)
        if not request.force:
            notes = check_fit(
                request.job,
                data_root=request.data_root,
                cache_root=request.cache_root,
                state_bytes=request.state_bytes,
            )
            self.notes = (*self.notes, *notes)

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
        group = LocalGroup(self._logs, network_pid=self._network.pid)
        try:
            group.prepare(specs)
            for spec in specs:
                group.add(spec)
        except BaseException:
            group.stop(grace_s=0.0)
            raise
        return group

    @override
    def close(self) -> None:
        self._network.close()

    def _keep_private(self) -> None:
        job = self.request.job
        if job.trust_network:
            self.notes = (trusted_network_note(job, why=""),)
            return
        try:
            self._network.start()
        except LaunchError as error:
            trusted_network_note(job, why=str(error))


class LocalGroup(WorkerGroup):
    """Child processes on this machine.

    Args:
        logs: Directory of their output.
        warm: How processes are forked; None: as set by `use_fork_server`.
        network_pid: Process whose network they enter; None: they stay in this process's.
    """

    def __init__(
        self, logs: Path, warm: WarmStart | None = None, *, network_pid: int | None = None
    ) -> None:
        self._logs = logs
        self._network_pid = network_pid
        self._warm = warm or WarmStart()
        self._children: dict[str, ChildProcess] = {}
        self._secret = secrets.token_hex(16)
        # Processes whose session and marked descendants have yet to be ended.
        self._with_helpers: set[str] = set()

    def prepare(self, specs: Sequence[WorkerSpec]) -> None:
        """Start the fork server that the processes of these specs share."""
        self._warm.prepare(sum(spec.can_fork for spec in specs))

    @override
    def add(self, spec: WorkerSpec) -> None:
        mark = {RUN_VARIABLE: self._token(spec.process)}
        with self._log_path(spec.process).open("ab") as log:
            forked = self._warm.fork(spec.module, log.fileno(), mark) if spec.can_fork else None
            child: ChildProcess = forked or _start_cold(spec, log, mark)
        if forked is not None and spec.parent_pid == os.getpid():
            # Its parent is the fork server, which ends when this process does.
            spec = spec.model_copy(update={"parent_pid": forked.parent_pid})
        spec = spec.model_copy(update={"network_pid": self._network_pid})
        self._children[spec.process] = child
        self._with_helpers.add(spec.process)
        # A process that exited already breaks the pipe; poll() reports its exit code and log.
        with contextlib.suppress(BrokenPipeError):
            lifeline = _lifeline(child)
            lifeline.write(spec.model_dump_json(by_alias=True).encode() + b"\n")
            lifeline.flush()

    @override
    def poll(self) -> list[ProcessStatus]:
        found = [ProcessStatus(name, child.poll()) for name, child in self._children.items()]
        # At once, while the number of a process that has just ended names no other one.
        self._end_helpers({one.process for one in found if not one.running})
        return found

    @override
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        return read_tail(self._log_path(process), num_lines)

    @override
    def kill(self, process: str) -> None:
        child = self._children[process]
        child.kill()
        _reap(process, child)
        self._end_helpers({process})

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
        self._end_helpers(set(self._children))
        self._warm.close()

    def _token(self, process: str) -> str:
        return f"{self._secret}/{process}"

    def _end_helpers(self, ended: set[str]) -> None:
        """Kill what processes that have ended leave behind: by session, and wherever it went."""
        fresh = ended & self._with_helpers
        if not fresh:
            return
        self._with_helpers -= fresh
        for name in fresh:
            # Each process heads its session and its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._children[name].pid, signal.SIGKILL)
        kill_marked(*map(self._token, fresh))

    def _log_path(self, process: str) -> Path:
        return self._logs / f"{process}.log"


def _start_cold(spec: WorkerSpec, log: BinaryIO, mark: Mapping[str, str]) -> ChildProcess:
    command = [sys.executable, "-m", spec.module]
    environment = {**os.environ, **mark}  # noqa: TID251 (what children inherit)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
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
