"""The processes of a run as the controller knows them: specs, heartbeats, last words, exits.

Starts, restarts and ends them through the launcher; what their state means is decided elsewhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.control.coordinator import Identity, Process
from phalanx.control.policy import ProcessFacts, ReportedError
from phalanx.launch.base import Launcher, WorkerGroup
from phalanx.launch.cores import CoreShare, share_cores
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.control import ControlServer
from phalanx.wire.messages import Beat, Done, Failed, FromWorker, Hello, Progress


@dataclass(frozen=True)
class RunRequest:
    """What the controller is asked to carry out."""

    job: JobSpec
    run: RunDir
    data_root: Path
    cache_root: Path
    attempt: int = 1
    resume: Path | None = None


@dataclass
class _Entry:
    """What is known of one process since its last start."""

    spec: WorkerSpec
    started: float
    joined: bool = False
    done: bool = False
    silent_s: float = 0.0
    progress: Progress = field(default_factory=Progress)
    error: ReportedError | None = None


class Roster:
    """All processes of one run.

    Args:
        request: What the run is.
        server: The control channel, which makes the processes' keys.
        launcher: How processes start.
        depot_port: Where processes without this run directory leave and find its files.
    """

    def __init__(
        self,
        request: RunRequest,
        server: ControlServer,
        launcher: Launcher,
        *,
        depot_port: int,
    ) -> None:
        self._request = request
        self._server = server
        self._launcher = launcher
        self._depot_port = depot_port
        self._entries: dict[str, _Entry] = {}
        self._group: WorkerGroup | None = None
        self._shares = _core_shares(request.job)

    @property
    def names(self) -> list[str]:
        """All processes, by name."""
        return list(self._entries)

    @property
    def worker_threads(self) -> int:
        """Compute threads of a worker."""
        return self._shares[0].threads

    @property
    def worker_progress(self) -> list[Progress]:
        """What the workers' last heartbeats said."""
        return [e.progress for e in self._entries.values() if e.spec.role == "worker"]

    def start(self, processes: Sequence[Process]) -> None:
        """Start all processes; on failure none is left behind."""
        # All processes run on this machine. Workers stay to the end, servers may have no slice.
        watcher = next((p for p in processes if p.role == "worker"), None)
        observe = self._request.job.observe
        baseline_s = observe.baseline_s if observe.interval_s is not None else 0.0
        specs = [
            self._spec(p, incarnation=1, watch_host=p == watcher, baseline_s=baseline_s)
            for p in processes
        ]
        now = time.monotonic()
        self._entries = {spec.process: _Entry(spec, now) for spec in specs}
        self._group = self._launcher.start(specs)

    def add(self, process: Process) -> None:
        """Start one more process."""
        assert self._group is not None
        spec = self._spec(process, incarnation=1)
        self._entries[process.name] = _Entry(spec, time.monotonic())
        self._group.add(spec)

    def replace(self, name: str) -> None:
        """Make sure that a process is gone, and start its successor."""
        assert self._group is not None
        old = self._entries[name].spec
        self._group.kill(name)
        spec = self._spec(
            Process(old.role, old.rank),
            incarnation=old.incarnation + 1,
            watch_host=old.watch_host,
        )
        self._entries[name] = _Entry(spec, time.monotonic())
        self._group.add(spec)

    def stop(self, grace_s: float) -> None:
        """End all processes and wait until they are gone."""
        if self._group is not None:
            self._group.stop(grace_s)

    def take(self, name: str, message: FromWorker) -> None:
        """Note what a message says about its sender."""
        entry = self._entries[name]
        entry.silent_s = 0.0
        entry.joined |= isinstance(message, Hello | Beat)
        if isinstance(message, Beat):
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

    def age(self, elapsed_s: float) -> None:
        """Time has passed in which nothing was heard, as far as is known."""
        for entry in self._entries.values():
            entry.silent_s += elapsed_s

    def exit_codes(self) -> dict[str, int | None]:
        """How each process ended, None while it runs."""
        assert self._group is not None
        return {status.process: status.exit_code for status in self._group.poll()}

    def facts(self, exit_codes: dict[str, int | None]) -> list[ProcessFacts]:
        """What is known of every process."""
        now = time.monotonic()
        return [
            ProcessFacts(
                process=name,
                joined=entry.joined,
                done=entry.done,
                silent_s=entry.silent_s,
                age_s=now - entry.started,
                exit_code=exit_codes.get(name),
                error=entry.error,
            )
            for name, entry in self._entries.items()
        ]

    def identity(self, name: str) -> Identity:
        """The present keys and incarnation of a process."""
        spec = self._entries[name].spec
        return Identity(public_key=spec.public_key, incarnation=spec.incarnation)

    def progress(self, name: str) -> Progress:
        """What a process's last heartbeat said."""
        return self._entries[name].progress

    def rank(self, name: str) -> int:
        """Rank of a process."""
        return self._entries[name].spec.rank

    def log_tail(self, name: str) -> str:
        """The last lines that a process printed."""
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
        request = self._request
        share = self._share(process)
        keys = self._server.admit(process.name)
        return WorkerSpec(
            job=request.job,
            role=process.role,
            rank=process.rank,
            incarnation=incarnation,
            run_dir=str(request.run.path.resolve()),
            depot_port=self._depot_port,
            data_root=str(request.data_root.resolve()),
            cache_root=str(request.cache_root.resolve()),
            threads=share.threads,
            cpus=share.cpus,
            attempt=request.attempt,
            resume=str(request.resume.resolve()) if request.resume else None,
            control_address=self._server.address,
            controller_key=self._server.public_key,
            public_key=keys.public,
            secret_key=keys.secret,
            watch_host=watch_host,
            baseline_s=baseline_s,
            parent_pid=os.getpid(),
        )

    def _share(self, process: Process) -> CoreShare:
        if process.role == "worker" and process.rank < len(self._shares):
            return self._shares[process.rank]
        # Servers and the evaluator go wherever there is room.
        return CoreShare(threads=1, cpus=())


def _core_shares(job: JobSpec) -> list[CoreShare]:
    cores = sorted(os.sched_getaffinity(0))
    return share_cores(cores, job.worker_processes, threads=job.threads, pin=job.pin)
