"""Track the processes of a run: specs, heartbeats, reported errors, exit codes.

Starts, restarts and ends them through the launcher; the controller owns it, and policies decide
what the facts mean. Time is what `age` adds up: the controller's own delays do not count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.control.coordinator import Identity, Process
from phalanx.control.failure_policy import ProcessFacts, ReportedError
from phalanx.control.watchdog import ProgressWatchdog
from phalanx.control.work_times import add_times, work_times
from phalanx.errors import ExitCode, ProtocolError
from phalanx.launch.allocation import Allocation, ProcessSlot
from phalanx.launch.base import Launcher, ProcessStatus, WorkerGroup
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.store.server import StoreServer
from phalanx.wire.control import ControlServer
from phalanx.wire.messages import (
    Done,
    Failed,
    FromWorker,
    Heartbeat,
    Hello,
    Ping,
    Progress,
    PutValue,
    WantValues,
    WorkTimes,
)


def _no_owner() -> None:
    pass


@dataclass(frozen=True)
class RunRequest:
    """Run to carry out: job, run directory, attempt and checkpoint to resume.

    Attributes:
        check_owner: Raises `StoreError` once another controller has taken over the run directory.
    """

    job: JobSpec
    run: RunDir
    data_root: Path
    cache_root: Path
    attempt: int = 1
    resume: Path | None = None
    check_owner: Callable[[], None] = _no_owner


@dataclass
class _Entry:
    """Facts about one process since its last start."""

    spec: WorkerSpec
    age_s: float = 0.0
    joined: bool = False
    is_starting: bool = True
    done: bool = False
    silent_s: float = 0.0
    progress: Progress = field(default_factory=Progress)
    error: ReportedError | None = None
    delay_s: float | None = None
    """Until it starts again; None: it has been started."""


class ProcessTable:
    """All processes of one run.

    Args:
        request: The run.
        server: The control channel, which makes the processes' keys.
        launcher: Starts processes.
        allocation: Machines and their process slots.
        store: Serves the run directory to processes that do not share it.
    """

    def __init__(
        self,
        request: RunRequest,
        server: ControlServer,
        launcher: Launcher,
        *,
        allocation: Allocation,
        store: StoreServer,
    ) -> None:
        self._request = request
        self._server = server
        self._launcher = launcher
        self._allocation = allocation
        self._store = store
        self._entries: dict[str, _Entry] = {}
        self._unmoved_s = math.inf  # since a process joined or was up
        self._left: dict[str, Progress] = {}
        self._lost_times: dict[str, WorkTimes] = {}
        self._group: WorkerGroup | None = None
        self.watchdog = ProgressWatchdog(request.job.deadlines.progress_s)

    @property
    def names(self) -> list[str]:
        """Names of all processes."""
        return list(self._entries)

    @property
    def worker_progress(self) -> dict[str, Progress]:
        """Progress in the workers' last heartbeats, by process."""
        workers = {n: e for n, e in self._entries.items() if e.spec.role == "worker"}
        return {name: entry.progress for name, entry in workers.items()}

    @property
    def lost_times(self) -> Mapping[str, WorkTimes]:
        """Time and bytes of workers that were replaced or left, which they cannot report."""
        return self._lost_times

    def start(self, processes: Sequence[Process]) -> None:
        """Start all processes; on failure none is left running."""
        self._allocation.announce([(p.role, p.rank) for p in processes])
        watchers = self._choose_watchers(processes)
        observe = self._request.job.observe
        baseline_s = observe.baseline_s if observe.interval_s is not None else 0.0
        specs = [
            self._spec(p, incarnation=1, watch_host=p in watchers, baseline_s=baseline_s)
            for p in processes
        ]
        self._entries = {spec.process: _Entry(spec) for spec in specs}
        self._group = self._launcher.start(specs)

    def has_room(self, process: Process) -> bool:
        """Return whether a machine has room for one more process."""
        return self._allocation.move(process.role, process.rank, crowd=False)

    def add(self, process: Process) -> None:
        """Start one more process."""
        assert self._group is not None
        spec = self._spec(process, incarnation=1)
        self._entries[process.name] = _Entry(spec)
        self._group.add(spec)

    def replace(self, name: str, *, crowd: bool, delay_s: float = 0.0) -> bool:
        """End a process and start its successor, on another machine if need be.

        Args:
            name: The process.
            crowd: Put it on a machine whose slots are full if no other is left.
            delay_s: When `start_due` starts it; until then it is in no facts.

        Returns:
            Whether there is a machine for it; if not, the process is no longer part of the run.
        """
        assert self._group is not None
        entry = self._entries[name]
        role, rank = entry.spec.role, entry.spec.rank
        # Before its successor starts: a frozen process may wake up and go on.
        self._group.kill(name)
        self._left[name] = entry.progress
        if role == "worker":
            self._lost_times = add_times(self._lost_times, {name: work_times(entry.progress)})
        # Should its machine come back, the revoked keys shut out what still runs there.
        self._server.admit(name)
        if not self._allocation.move(role, rank, crowd=crowd or role != "worker"):
            del self._entries[name]
            return False
        entry.delay_s = delay_s
        self.start_due()
        return True

    def start_due(self) -> None:
        """Start the successors whose delay has passed."""
        assert self._group is not None
        due = [n for n, e in self._entries.items() if e.delay_s is not None and e.delay_s <= 0.0]
        for name in due:
            old = self._entries[name].spec
            spec = self._spec(Process(old.role, old.rank), incarnation=old.incarnation + 1)
            if spec.host == old.host:
                spec = spec.model_copy(update={"watch_host": old.watch_host})
            self._entries[name] = _Entry(spec)
            self._group.add(spec)

    def stop(self, grace_s: float) -> None:
        """End all processes, by force after the grace period."""
        if self._group is not None:
            self._group.stop(grace_s)

    def take(self, name: str, message: FromWorker) -> None:
        """Note what a message reveals about its sender."""
        entry = self._entries.get(name)
        if entry is None:
            return
        self.watchdog.take(name, message)
        entry.silent_s = 0.0
        before = (entry.joined, entry.is_starting)
        entry.joined |= isinstance(message, Hello | Heartbeat)
        entry.is_starting &= _may_be_starting(message)
        if before != (entry.joined, entry.is_starting):
            self._unmoved_s = 0.0
        if isinstance(message, Heartbeat):
            entry.progress = message.progress
        elif isinstance(message, Failed):
            entry.error = ReportedError(
                kind=message.kind,
                message=message.message,
                traceback=message.traceback,
                exit_code=message.exit_code,
            )
        elif isinstance(message, Done):
            entry.done = True

    def heard(self, names: Iterable[str]) -> None:
        """Note signs of life: parts of messages are some, too."""
        for name in names:
            if name in self._entries:
                self._entries[name].silent_s = 0.0

    def blame(self, name: str, reason: str) -> None:
        """Count a process that broke the protocol as failed, for this reason."""
        self._entries[name].error = ReportedError(
            kind=ProtocolError.__name__,
            message=reason,
            traceback="",
            exit_code=ExitCode.WORKER_LOST,
        )

    def age(self, elapsed_s: float) -> None:
        """Add undisturbed time to the age and the silence of every process."""
        self._unmoved_s += elapsed_s
        for entry in self._entries.values():
            entry.age_s += elapsed_s
            entry.silent_s += elapsed_s
            if entry.delay_s is not None:
                entry.delay_s -= elapsed_s
        is_starting = not all(entry.joined for entry in self._entries.values())
        self.watchdog.age(elapsed_s, is_starting=is_starting)

    def poll(self) -> dict[str, ProcessStatus]:
        """Return the status of each process: running, or how it ended."""
        assert self._group is not None
        return {status.process: status for status in self._group.poll()}

    def facts(self, statuses: dict[str, ProcessStatus]) -> list[ProcessFacts]:
        """Return the facts about every process that has been started."""
        found = {name: statuses.get(name, ProcessStatus(name, None)) for name in self._entries}
        crowded = {
            entry.spec.host
            for name, entry in self._entries.items()
            if entry.is_starting
            and entry.delay_s is None
            and found[name].exit_code is None
            and found[name].lost is None
        }
        return [
            ProcessFacts(
                process=name,
                joined=entry.joined,
                done=entry.done,
                silent_s=entry.silent_s,
                # Deadlines count from the last movement: many processes start one after another.
                age_s=min(entry.age_s - entry.spec.baseline_s, self._unmoved_s),
                is_starting=entry.is_starting,
                is_crowded=entry.spec.host in crowded,
                exit_code=found[name].exit_code,
                error=entry.error,
                machine=entry.spec.host if entry.spec.is_networked else "",
                lost=found[name].lost,
            )
            for name, entry in self._entries.items()
            if entry.delay_s is None
        ]

    def identity(self, name: str) -> Identity:
        """Return the present keys and incarnation of a process."""
        spec = self._entries[name].spec
        return Identity(public_key=spec.public_key, incarnation=spec.incarnation)

    def progress(self, name: str) -> Progress:
        """Return the progress in a process's last heartbeat, also once it has left the run."""
        entry = self._entries.get(name)
        return entry.progress if entry is not None else self._left.get(name, Progress())

    def rank(self, name: str) -> int:
        """Return the rank of a process."""
        return self._entries[name].spec.rank

    def machine(self, name: str) -> str:
        """Return where a process runs, or its successor will; empty: on the controller's own."""
        spec = self._entries[name].spec
        return self._allocation.slot(spec.role, spec.rank).machine if spec.is_networked else ""

    def workers_beside(self, machine: str) -> int:
        """Return how many workers are not on a machine."""
        workers = [entry.spec for entry in self._entries.values() if entry.spec.role == "worker"]
        return sum(spec.host != machine for spec in workers)

    def has_joined(self, name: str) -> bool:
        """Return whether a process has reported since its last start."""
        entry = self._entries.get(name)
        return entry is not None and entry.joined

    def log_tail(self, name: str) -> str:
        """Return the last lines that a process printed."""
        assert self._group is not None
        return self._group.log_tail(name)

    def _spec(
        self,
        process: Process,
        *,
        incarnation: int,
        watch_host: bool = False,
        baseline_s: float = 0.0,
    ) -> WorkerSpec:
        request, slot = self._request, self._allocation.slot(process.role, process.rank)
        keys = self._server.admit(process.name)
        return WorkerSpec(
            job=_job_there(request.job, slot),
            role=process.role,
            rank=process.rank,
            incarnation=incarnation,
            host=slot.machine,
            address=slot.address,
            run_dir=slot.run_dir,
            shared_run_dir=slot.shares_run_dir,
            # Runs on one machine have no store server: it starts with the first remote process.
            store_port=0 if slot.shares_run_dir else self._store.start(),
            data_root=slot.data_root,
            cache_root=slot.cache_root,
            threads=slot.threads,
            cpus=slot.cpus,
            attempt=request.attempt,
            resume=str(request.resume.resolve()) if request.resume else None,
            control_address=self._server.address_at(slot.controller),
            controller_key=self._server.public_key,
            public_key=keys.public,
            secret_key=keys.secret,
            environment=self._environment(process),
            watch_host=watch_host,
            baseline_s=baseline_s,
            parent_pid=os.getpid(),
        )

    def _environment(self, process: Process) -> dict[str, str]:
        if self._request.job.program is not None:
            # A script that finds RANK set would start a process group of its own.
            return {}
        run = self._request.run.name
        return self._allocation.environment(process.role, process.rank, run=run)

    def _choose_watchers(self, processes: Sequence[Process]) -> list[Process]:
        """Choose the process of each machine that samples it.

        Workers run to the end; servers may own no shard and leave at once.
        """
        order = {"worker": 0, "chief": 1, "evaluator": 2, "server": 3}
        chosen: dict[str, Process] = {}
        for process in sorted(processes, key=lambda one: order[one.role]):
            chosen.setdefault(self._allocation.slot(process.role, process.rank).machine, process)
        return list(chosen.values())


def _may_be_starting(message: FromWorker) -> bool:
    """Tell whether a process may still import code or build its network when it sends this."""
    if isinstance(message, Heartbeat):
        return message.progress.is_starting
    return isinstance(message, Hello | Ping | PutValue | WantValues)


def _job_there(job: JobSpec, slot: ProcessSlot) -> JobSpec:
    """Adapt the job to one machine: paths of its data, its power draw."""
    changes: dict[str, object] = {}
    if slot.data != job.data:
        changes["data"] = slot.data
    if slot.watts is not None and job.observe.watts_full is None:
        idle, full = slot.watts
        watts = {"watts_idle": idle, "watts_full": full}
        changes["observe"] = job.observe.model_copy(update=watts)
    return job.model_copy(update=changes) if changes else job
