"""Start processes on other machines through their agents, and collect their logs.

A process that is frozen or does not end is killed by its machine's agent. A machine whose session
breaks, or that is silent for some seconds, is lost with all of its processes: they exit because
their lifeline is the same connection. Time in which this process itself was held up is no silence.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from phalanx.agent.line import MachineFault
from phalanx.agent.session import News, Session
from phalanx.errors import LaunchError, printable
from phalanx.launch.allocation import Allocation, PoolAllocation
from phalanx.launch.base import Launcher, LaunchRequest, ProcessStatus, WorkerGroup
from phalanx.launch.fork_server import OFF, chosen_fork_server
from phalanx.launch.hosts import HostGroup
from phalanx.launch.log_sync import LogSync
from phalanx.launch.private_network import opens_ports, trusted_network_note
from phalanx.launch.provision import Provisioned, provision
from phalanx.launch.silence import SilenceMeter
from phalanx.pool.scheduler import RouteMaker, open_routes
from phalanx.records.log import read_tail
from phalanx.records.rundir import RunDir
from phalanx.spec.pool import PoolSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.deadline import Deadline
from phalanx.wire.descriptors import ensure_descriptors

_log = logging.getLogger(__name__)

_START_S = 30.0
_KILL_S = 10.0
_AFTER_GRACE_S = 10.0
_DISK_S = 120.0
_SILENCE_SHARE = 0.75


class SshLauncher(Launcher):
    """Start processes on the machines of a pool, over ssh or as its scheduler reaches them."""

    routes: Callable[[PoolSpec], AbstractContextManager[RouteMaker]] = staticmethod(open_routes)

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__(request)
        self._stack = contextlib.ExitStack()
        self._ready: Provisioned | None = None
        self._run_dir = Path()
        # Shorter than the workers' heartbeat limit, so that a lost machine is named as the cause.
        self._silence_s = request.job.deadlines.heartbeat_s * _SILENCE_SHARE

    @override
    def check(self) -> None:
        assert self.request.pool is not None, "the table of launchers says that it needs one"
        notes: list[str] = []
        if opens_ports(self.request.job):
            why = "a run on several machines cannot keep them private"
            notes.append(trusted_network_note(self.request.job, why=why))
        ensure_descriptors(
            num_machines=len(self.request.pool.machines),
            num_processes=self.request.job.processes.total,
        )
        # Entered first, so that the way to a machine is there until it is cleaned up.
        route = self._stack.enter_context(self.routes(self.request.pool.pool))
        ready = provision(self.request, self.request.pool, route=route)
        self._ready = self._stack.enter_context(ready)
        self.notes = (*notes, *self._ready.group.notes)

    @override
    def allocate(self, run: RunDir) -> Allocation:
        ready = self._ready
        assert ready is not None, "check comes first"
        ready.group.begin(run.name, limit_s=self.request.job.deadlines.controller_s)
        self._run_dir = run.path
        return PoolAllocation(ready.group, ready.placement, ready.capacities)

    @override
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        assert self._ready is not None, "check comes first"
        group = SshGroup(self._ready.group, self._run_dir, silence_s=self._silence_s)
        try:
            group.start(specs)
        except BaseException:
            # Also on Ctrl-C: processes that were started already must not remain.
            group.stop(grace_s=0.0)
            raise
        return group

    @override
    def close(self) -> None:
        self._stack.close()


@dataclass
class _RemoteProcess:
    """One process since its last start."""

    machine: str
    serial: int
    exit_code: int | None = None


class SshGroup(WorkerGroup):
    """Processes on the machines of a pool."""

    def __init__(self, hosts: HostGroup, run_dir: Path, *, silence_s: float) -> None:
        self._hosts = hosts
        self._run_dir = run_dir
        self._silence_s = silence_s
        self._silence = SilenceMeter()
        self._serials = itertools.count(1)
        self._processes: dict[str, _RemoteProcess] = {}
        self._may_fork = chosen_fork_server() != OFF
        self._num_forkable: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._of_machine: dict[str, set[str]] = {name: set() for name in hosts.by_name}
        self._syncs = {
            name: LogSync(run_dir, name, processes) for name, processes in self._of_machine.items()
        }
        # Before the first start, so that no output or exit is missed.
        for name, machine in hosts.by_name.items():
            machine.session.on_news = self._listener(name, self._syncs[name])

    def start(self, specs: Sequence[WorkerSpec]) -> None:
        """Start processes on all machines in parallel.

        Raises:
            LaunchError: One could not be started.
        """
        deadline = Deadline.after(_START_S, "processes to be started")
        # All are counted before the first is started: it is forked too if others follow.
        self._count(specs)
        # Send all orders before waiting for the first answer, so that machines work in parallel.
        for session, answer in [self._begin(spec) for spec in specs]:
            session.wait(answer, deadline.remaining_s)

    @override
    def add(self, spec: WorkerSpec) -> None:
        self._count([spec])
        session, answer = self._begin(spec)
        try:
            session.wait(answer, _START_S)
        except MachineFault as error:
            # Gone, or it does not even answer; either way poll() reports it as lost.
            self._hosts.lose(session.machine, error.fault.reason)

    @override
    def poll(self) -> list[ProcessStatus]:
        self._silence.tick()
        for name, machine in self._hosts.by_name.items():
            session = machine.session
            silent_s = self._silence.silent_s(
                name, session.heard_s, is_held_up=self._hosts.news.is_full(name)
            )
            if session.fault is not None:
                # The session noticed the fault itself; `lose` still has to clean up.
                self._hosts.lose(name, session.fault.reason)
            elif silent_s > self._silence_s:
                self._hosts.lose(
                    name,
                    f"nothing was heard of it for {silent_s:.1f} s; check that it is on, and its "
                    "network",
                )
        with self._changed:
            return [self._status(name, one) for name, one in self._processes.items()]

    @override
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        return read_tail(self._run_dir / "logs" / f"{process}.log", num_lines)

    @override
    def kill(self, process: str) -> None:
        session = self._hosts.by_name[self._processes[process].machine].session
        if session.fault is not None:
            return  # it ends with its machine's connection
        try:
            session.ask({"do": "kill", "name": process}, _KILL_S)
        except LaunchError as error:
            self._hosts.lose(session.machine, str(error))

    @override
    def stop(self, grace_s: float) -> None:
        machines = {one.machine for one in self._processes.values()}
        sessions = [self._hosts.by_name[name].session for name in machines]
        for session in sessions:
            session.tell({"do": "stop", "grace_s": grace_s})
        # Agents kill after the grace period; a machine with processes left after that is lost.
        deadline = Deadline.after(grace_s + _AFTER_GRACE_S, "processes to end")
        slow_disk = Deadline.after(deadline.limit_s + _DISK_S, "a slow disk")
        with self._changed:
            while late := {one.machine for one in self._running()}:
                # An exit that has come and waits for this disk is no fault of the machine.
                is_ours = any(map(self._hosts.news.has_waiting, late)) and not slow_disk.expired
                if deadline.expired and not is_ours:
                    break
                self._changed.wait(0.2)
        for name in late:
            self._hosts.lose(name, f"its processes did not end within {deadline.limit_s:g} s")

    def _count(self, specs: Sequence[WorkerSpec]) -> None:
        """Count what each machine is given to start; one that was lost there counts as well."""
        if self._may_fork:
            self._num_forkable.update(spec.host for spec in specs if spec.can_fork)

    def _begin(self, spec: WorkerSpec) -> tuple[Session, Future[Any]]:
        machine = self._hosts.by_name[spec.host]
        with self._changed:
            remote = self._processes[spec.process] = _RemoteProcess(spec.host, next(self._serials))
        # Behind all that has come so far, and before anything that this start brings. As nobody's
        # news: this thread must not wait for room in a machine's queue.
        self._hosts.news.put("", {}, lambda _: self._own(spec.process, spec.host))
        # Create the log even if the process never prints, as for local processes.
        (self._run_dir / "logs" / f"{spec.process}.log").touch()
        order = {
            "do": "start",
            "name": spec.process,
            "serial": remote.serial,
            "command": [machine.python, "-m", spec.module],
            "environment": {"PYTHONPATH": ":".join(machine.code)},
            "directory": machine.code[-1],
            # For a single process the imports of a fork server would cost what they save.
            "warm": spec.can_fork and self._num_forkable[spec.host] > 1,
            "spec": spec.model_dump(mode="json", by_alias=True),
        }
        return machine.session, machine.session.tell(order)

    def _own(self, process: str, machine: str) -> None:
        """From now on one machine alone writes the files of a process; called by the writer."""
        left = [name for name, owned in self._of_machine.items() if process in owned]
        for name in left:
            self._of_machine[name].remove(process)
        self._of_machine[machine].add(process)
        for name in left:
            if name != machine:
                # The line that it has begun; what it still sends is refused.
                self._syncs[name].finish(process)

    def _status(self, name: str, one: _RemoteProcess) -> ProcessStatus:
        fault = self._hosts.by_name[one.machine].session.fault
        lost = fault.reason if fault and one.exit_code is None else None
        return ProcessStatus(name, one.exit_code, lost)

    def _running(self) -> list[_RemoteProcess]:
        """Return processes that have not ended, on machines that are not lost."""
        return [
            one
            for one in self._processes.values()
            if one.exit_code is None and self._hosts.by_name[one.machine].session.fault is None
        ]

    def _listener(self, machine: str, sync: LogSync) -> Callable[[News], None]:
        def handle(news: News) -> None:
            match news["news"]:
                case "more":
                    sync.append(news["path"], news["content"])
                case "whole":
                    sync.replace(
                        news["path"], news["content"], first=news["first"], last=news["last"]
                    )
                case "cold":
                    _log.info("%s starts cold: %s", news["name"], printable(news["reason"]))
                case "exit":
                    # Flush before the exit is visible: `log_tail` must be complete by then.
                    try:
                        sync.finish(news["name"])
                    finally:
                        self._note_exit(machine, news)

        # Not here, where the machine is listened to: a disk may take its time.
        return lambda news: self._hosts.news.put(machine, news, handle)

    def _note_exit(self, machine: str, news: News) -> None:
        with self._changed:
            one = self._processes.get(news["name"])
            # Ignore exits of an earlier start of the same process, and what others say of it.
            if one is not None and (one.serial, one.machine) == (news["serial"], machine):
                one.exit_code = int(news["code"])
                self._changed.notify_all()
