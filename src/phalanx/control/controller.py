"""The controller: starts the processes of a run, watches them, and ends them on every way out.

It alone acts; what the facts mean is decided by `policy`. It polls processes and messages a few
times a second: a killed worker is noticed at once and a frozen one after its heartbeat limit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.control.collect import summarise
from phalanx.control.policy import ProcessFacts, ReportedError, Trouble, judge
from phalanx.control.progress import Observer, combine
from phalanx.control.signals import CaughtSignals, catch_signals
from phalanx.errors import ExitCode, Interrupted, PhalanxError, StoreError, Terminated
from phalanx.launch.base import Launcher, WorkerGroup
from phalanx.launch.cores import share_cores
from phalanx.records.events import Decision, Failure, Finished
from phalanx.records.log import EventLog
from phalanx.records.rundir import RunDir, Status
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.control import ControlServer
from phalanx.wire.messages import (
    Beat,
    Done,
    EpochDone,
    Failed,
    FromWorker,
    Hello,
    Progress,
    Result,
    Stop,
)

_log = logging.getLogger(__name__)

_TICK_S = 0.1
# A longer tick was the controller's own delay and is not held against the workers.
_LONGEST_TICK_S = 0.5
_RATE_WINDOW_S = 5.0


class RunFailed(PhalanxError):
    """A run ended before its time; the message is the cause, `exit_code` its kind."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message, **facts)
        code = facts.get("exit_code", ExitCode.FAILED)
        assert isinstance(code, int)
        self.exit_code = ExitCode(code)


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
class _Watched:
    """What the controller knows of one process."""

    spec: WorkerSpec
    joined: bool = False
    silent_s: float = 0.0
    progress: Progress = field(default_factory=Progress)
    error: ReportedError | None = None
    result: Result | None = None


class Controller:
    """Carries out one run.

    Args:
        request: What to run.
        launcher: How processes start.
        observers: Who follows the run.
    """

    def __init__(
        self, request: RunRequest, *, launcher: Launcher, observers: Sequence[Observer] = ()
    ) -> None:
        self._request = request
        self._launcher = launcher
        self._observers = observers
        self._watched: dict[str, _Watched] = {}
        self._rates: deque[tuple[float, int]] = deque()

    def run(self) -> Summary:
        """Run to the end.

        Returns:
            The summary, which is also in the run directory.

        Raises:
            RunFailed: A process was lost or failed; every process has ended.
            Interrupted: Ctrl-C; every process has ended.
            Terminated: SIGTERM; every process has ended.
        """
        run = self._request.run
        self._mark("running")
        try:
            with (
                catch_signals() as caught,
                EventLog(run.events_path("controller")) as log,
                ControlServer() as server,
            ):
                self._notify(lambda one: one.run_started(run.path, self._request.job))
                summary = self._supervise(server, log, caught)
        except PhalanxError as error:
            error.facts.setdefault("run_dir", str(run.path))
            interrupted = isinstance(error, Interrupted | Terminated)
            self._mark("interrupted" if interrupted else "failed", error)
            raise
        run.write_summary(summary)
        self._mark("finished")
        self._notify(lambda one: one.run_finished(summary))
        return summary

    def _supervise(self, server: ControlServer, log: EventLog, caught: CaughtSignals) -> Summary:
        started = time.monotonic()
        specs = self._worker_specs(server)
        self._watched = {spec.process: _Watched(spec) for spec in specs}
        group = self._launcher.start(specs)
        grace_s = self._request.job.deadlines.stop_s
        try:
            self._watch(server, group, log, caught, started)
        except BaseException as error:
            # The disk that broke the run may refuse this as well; the processes end all the same.
            with contextlib.suppress(StoreError):
                log.record(Decision(what="stop all processes", reason=str(error)))
            for name in self._watched:
                server.send(name, Stop(str(error)))
            # A second Ctrl-C means: no grace.
            group.stop(0.0 if caught.times > 1 else grace_s)
            raise
        group.stop(grace_s)
        log.record(Finished(rank=-1, state="finished"))
        results = {
            name: watched.result
            for name, watched in self._watched.items()
            if watched.result is not None
        }
        return summarise(
            self._request.run,
            self._request.job,
            results,
            threads=specs[0].threads,
            elapsed_s=time.monotonic() - started,
            attempts=self._request.attempt,
        )

    def _watch(
        self,
        server: ControlServer,
        group: WorkerGroup,
        log: EventLog,
        caught: CaughtSignals,
        started: float,
    ) -> None:
        """Follow the run until it has finished; raises when it cannot."""
        suspicion: float | None = None
        last_tick = started
        while True:
            self._take_messages(server)
            now = time.monotonic()
            self._age(min(now - last_tick, _LONGEST_TICK_S))
            last_tick = now
            if caught.number is not None:
                raise _interruption(caught.number)
            # Exit codes first, then messages that were sent before the exit.
            exit_codes = {status.process: status.exit_code for status in group.poll()}
            self._take_messages(server, wait_s=0.0)
            verdict = judge(
                [self._facts(name, exit_codes.get(name)) for name in self._watched],
                deadlines=self._request.job.deadlines,
                since_start_s=now - started,
                since_suspicion_s=None if suspicion is None else now - suspicion,
            )
            if verdict.suspicious and suspicion is None:
                suspicion = now
            if verdict.trouble is not None:
                raise self._failure(verdict.trouble, group, log)
            if verdict.finished:
                return
            self._report_progress(now - started)

    def _take_messages(self, server: ControlServer, wait_s: float = _TICK_S) -> None:
        while (received := server.receive(wait_s)) is not None:
            name, message = received
            self._take(self._watched[name], message)
            wait_s = 0.0

    def _take(self, watched: _Watched, message: FromWorker) -> None:
        watched.silent_s = 0.0
        if isinstance(message, Hello):
            watched.joined = True
        elif isinstance(message, Beat):
            watched.joined = True
            watched.progress = message.progress
        elif isinstance(message, EpochDone):
            report = message.report
            self._notify(lambda one: one.epoch_done(report))
        elif isinstance(message, Failed):
            watched.error = ReportedError(
                kind=message.kind,
                message=message.message,
                traceback=message.traceback,
                exit_code=message.exit_code,
            )
        elif isinstance(message, Done):
            watched.result = message.result

    def _age(self, elapsed_s: float) -> None:
        for watched in self._watched.values():
            watched.silent_s += elapsed_s

    def _facts(self, name: str, exit_code: int | None) -> ProcessFacts:
        watched = self._watched[name]
        return ProcessFacts(
            process=name,
            joined=watched.joined,
            done=watched.result is not None,
            silent_s=watched.silent_s,
            exit_code=exit_code,
            error=watched.error,
        )

    def _report_progress(self, elapsed_s: float) -> None:
        workers = [watched.progress for watched in self._watched.values()]
        samples = sum(worker.samples for worker in workers)
        if samples == 0:
            # The time before the first step would make the speed look lower than it is.
            self._rates.clear()
        self._rates.append((elapsed_s, samples))
        while elapsed_s - self._rates[0][0] > _RATE_WINDOW_S and len(self._rates) > 2:
            self._rates.popleft()
        then, before = self._rates[0]
        rate = (samples - before) / (elapsed_s - then) if elapsed_s > then else 0.0
        progress = combine(workers, epochs=self._request.job.epochs, elapsed_s=elapsed_s, rate=rate)
        self._notify(lambda one: one.progressed(progress))

    def _failure(self, trouble: Trouble, group: WorkerGroup, log: EventLog) -> RunFailed:
        detail = trouble.detail or group.log_tail(trouble.process)
        rank = self._watched[trouble.process].spec.rank
        log.record(Failure(rank=rank, cause=trouble.cause, detail=detail))
        return RunFailed(
            trouble.cause,
            process=trouble.process,
            rank=rank,
            detail=detail,
            exit_code=trouble.exit_code,
        )

    def _worker_specs(self, server: ControlServer) -> list[WorkerSpec]:
        request = self._request
        job = request.job
        cores = sorted(os.sched_getaffinity(0))
        shares = share_cores(cores, job.workers, threads=job.threads, pin=job.pin)
        specs = []
        for rank, share in enumerate(shares):
            keys = server.admit(f"worker-{rank}")
            specs.append(
                WorkerSpec(
                    job=job,
                    role="worker",
                    rank=rank,
                    run_dir=str(request.run.path.resolve()),
                    data_root=str(request.data_root.resolve()),
                    cache_root=str(request.cache_root.resolve()),
                    threads=share.threads,
                    cpus=share.cpus,
                    attempt=request.attempt,
                    resume=str(request.resume.resolve()) if request.resume else None,
                    control_address=server.address,
                    controller_key=server.public_key,
                    public_key=keys.public,
                    secret_key=keys.secret,
                    parent_pid=os.getpid(),
                )
            )
        return specs

    def _mark(self, state: str, error: PhalanxError | None = None) -> None:
        status = Status(
            state=state,
            pid=os.getpid(),
            attempt=self._request.attempt,
            cause=str(error) if error else None,
            rank=error.facts.get("rank") if error else None,
        )
        try:
            self._request.run.write_status(status)
        except PhalanxError:
            # A full disk must not hide the failure that is being reported.
            if error is None:
                raise
            _log.exception("the status of %s could not be written", self._request.run.path)

    def _notify(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            tell(observer)


def _interruption(number: int) -> PhalanxError:
    if number == signal.SIGINT:
        return Interrupted("interrupted by Ctrl-C; continue with `phalanx train --resume`")
    return Terminated("ended by SIGTERM; continue with `phalanx train --resume`")
