"""Start the processes of a run, watch them, and end them on every way out.

Only the controller acts; `failure_policy` and the coordinator decide. It polls exit codes and
messages several times a second: a killed worker is noticed at once, a frozen one after its
heartbeat deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import msgspec

from phalanx.control.backend_coordinator import BackendCoordinator
from phalanx.control.coordinator import Coordinator, Identity
from phalanx.control.failure_policy import ProcessFailure
from phalanx.control.message_roles import check_sender
from phalanx.control.process_table import ProcessTable, RunRequest
from phalanx.control.progress import Observer, SpeedMeter, combine
from phalanx.control.signals import CaughtSignals, catch_signals
from phalanx.control.summarize import summarise
from phalanx.errors import (
    ExitCode,
    Interrupted,
    PhalanxError,
    ProtocolError,
    StoreError,
    Terminated,
)
from phalanx.launch.allocation import Allocation
from phalanx.launch.base import Launcher
from phalanx.observe.sampler import Sampler
from phalanx.records.events import Decision, Event, Failure, Finished, Placed, Switched, Warned
from phalanx.records.log import EventLog
from phalanx.records.position import newest_position
from phalanx.records.rundir import Status
from phalanx.records.summary import Summary
from phalanx.spec.kinds import kind_of
from phalanx.spec.registry import load
from phalanx.store.server import StoreServer
from phalanx.wire.control import ControlServer, Violation
from phalanx.wire.messages import (
    EpochFigures,
    Failed,
    FromController,
    FromWorker,
    Heartbeat,
    Hello,
    Progress,
    Stop,
)

_log = logging.getLogger(__name__)

_TICK_S = 0.1
# A longer tick is the controller's own delay and must not count as silence of the workers.
_LONGEST_TICK_S = 0.5


class RunFailed(PhalanxError):
    """A run ended before its time; the message is the cause, `exit_code` its kind."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message, **facts)
        code = facts.get("exit_code", ExitCode.FAILED)
        assert isinstance(code, int)
        self.exit_code = ExitCode(code)


class Controller:
    """Supervise one run.

    Args:
        request: Job, run directory and attempt.
        launcher: Starts processes.
        allocation: Machines and their process slots.
        observers: Notified of progress.
    """

    def __init__(
        self,
        request: RunRequest,
        *,
        launcher: Launcher,
        allocation: Allocation,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._request = request
        self._launcher = launcher
        self._allocation = allocation
        self._observers = observers
        self._speed = SpeedMeter()
        self._wanted_workers: int | None = request.run.requested_workers()

    def run(self) -> Summary:
        """Run to the end; no process of the run is left on any way out.

        Returns:
            The summary, which is also in the run directory.

        Raises:
            RunFailed: A process was lost or failed.
            Interrupted: Ctrl-C.
            Terminated: SIGTERM.
        """
        run = self._request.run
        self._mark("running")
        try:
            with (
                catch_signals() as caught,
                EventLog(run.events_path("controller")) as log,
                ControlServer(self._allocation.listen) as server,
                StoreServer(server, run.path) as store,
            ):
                self._notify(lambda one: one.run_started(run.path, self._request.job))
                self._server, self._log, self._store = server, log, store
                for note in self._launcher.notes:
                    log.record(Warned(message=note))
                summary = self._supervise(caught)
        except PhalanxError as error:
            error.facts.setdefault("run_dir", str(run.path))
            interrupted = isinstance(error, Interrupted | Terminated)
            self._mark("interrupted" if interrupted else "failed", error)
            raise
        run.write_summary(summary)
        self._mark("finished")
        self._notify(lambda one: one.run_finished(summary))
        return summary

    def _sampler(self, log: EventLog) -> Sampler:
        request = self._request
        # Without children: they are the other processes of the run, which sample themselves.
        return Sampler(
            request.job.observe, log.record, attempt=request.attempt, with_children=False
        )

    def _supervise(self, caught: CaughtSignals) -> Summary:
        started, log = time.monotonic(), self._log
        coordinator = self._make_coordinator()
        with self._sampler(log):
            self._carry_out(coordinator, caught, started)
            while coordinator.successor is not None:
                coordinator = coordinator.successor
                self._request = replace(self._request, resume=self._request.run.checkpoints)
                self._carry_out(coordinator, caught, started)
        log.record(Finished(rank=-1, state="finished"))
        # Before the summary, which reads the logs, this one's last samples included.
        log.flush()
        return summarise(
            self._request.run,
            self._request.job,
            coordinator,
            threads=self._allocation.worker_threads,
            elapsed_s=time.monotonic() - started,
            attempts=self._request.attempt,
        )

    def _carry_out(self, coordinator: Coordinator, caught: CaughtSignals, started: float) -> None:
        """Start a coordinator's processes and supervise them until all have ended."""
        server, log = self._server, self._log
        self._processes = roster = ProcessTable(
            self._request,
            server,
            self._launcher,
            allocation=self._allocation,
            store=self._store,
        )
        grace_s = self._request.job.deadlines.stop_s
        roster.start(coordinator.processes())
        try:
            self._watch(coordinator, caught, started)
        except BaseException as error:
            # The full disk that broke the run may refuse this too; the processes must end anyway.
            with contextlib.suppress(StoreError):
                log.record(Decision(what="stop all processes", reason=str(error)))
            # Asked before they are ended, so that they can close their logs.
            for name in roster.names:
                server.send(name, Stop(str(error)))
            # A second Ctrl-C skips the grace period.
            roster.stop(0.0 if caught.times > 1 else grace_s)
            raise
        roster.stop(grace_s)

    def _make_coordinator(self) -> Coordinator:
        request = self._request
        found = newest_position(request.resume) if request.resume else None
        path = kind_of(request.job.strategy).coordinator
        # TensorFlow has its own chief, whatever the strategy.
        of_strategy = request.job.backend != "tensorflow"
        made = cast(type[Coordinator], load(path)) if of_strategy else BackendCoordinator
        return made.begin(request.job, self, found)

    def _watch(self, coordinator: Coordinator, caught: CaughtSignals, started: float) -> None:
        """Supervise until the run has finished; raises when it cannot go on."""
        roster = self._processes
        last_tick = started
        while True:
            self._take_messages(coordinator)
            self._processes.heard(self._server.take_heard())
            now = time.monotonic()
            roster.age(min(now - last_tick, _LONGEST_TICK_S))
            last_tick = now
            if caught.number is not None:
                raise _interruption(caught.number)
            # Exit codes before messages: what a process sent before its exit is then read in the
            # same round, and one that has finished is not mistaken for a lost one.
            statuses = roster.poll()
            if not self._take_messages(coordinator, wait_s=0.0):
                statuses = {}  # the last words of a process that has ended may be unread
            verdict = coordinator.judge(roster.facts(statuses))
            if verdict.failure is not None:
                raise self._failure(verdict.failure)
            if verdict.finished:
                return
            for failure in verdict.replace:
                self._replace(failure, coordinator)
            self._grow(coordinator)
            self._report_progress(now - started)

    def _take_messages(self, coordinator: Coordinator, wait_s: float = _TICK_S) -> bool:
        """Handle what has arrived, for one tick at most; False: there is more.

        Other work has its turn however fast messages come: signals, exit codes, deadlines.
        """
        end = time.monotonic() + wait_s + _TICK_S
        while (received := self._server.receive(wait_s)) is not None:
            name, message = received
            wait_s = 0.0
            if name in self._processes.names:  # otherwise the run goes on without it
                self._take_message(name, message, coordinator)
            if time.monotonic() > end:
                return False
        return True

    def _take_message(
        self, name: str, message: FromWorker | Violation, coordinator: Coordinator
    ) -> None:
        """Handle one message; one that is malformed or misplaced ends its sender, nobody else."""
        try:
            if isinstance(message, Violation):
                raise ProtocolError(message.reason)
            self._processes.take(name, message)
            if not isinstance(message, Hello | Heartbeat | Failed):
                check_sender(name, message)
                coordinator.take(name, message)
        except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._processes.blame(name, str(error))

    def _replace(self, failure: ProcessFailure, coordinator: Coordinator) -> None:
        """Replace a lost process, or go on without it where no machine has room."""
        name = failure.process
        detail = failure.detail or self._processes.log_tail(name)
        rank = self._processes.rank(name)
        self._log.record(Failure(rank=rank, cause=failure.cause, detail=detail))
        self._log.record(Decision(what=f"replace {name}", reason=failure.cause, rank=rank))
        # Before the successor starts: servers dismiss by role and rank, which the two share.
        coordinator.left(name)
        if self._processes.replace(name, crowd=not coordinator.can_shrink):
            return
        if not self._processes.worker_progress or not name.startswith("worker-"):
            raise self._failure(failure)
        reason = "no other machine has a free slot for it"
        self._log.record(Decision(what=f"go on without {name}", reason=reason, rank=rank))

    def _grow(self, coordinator: Coordinator) -> None:
        """Start the workers that `phalanx scale` requests, once per request."""
        wanted = self._request.run.requested_workers()
        if wanted is None or wanted == self._wanted_workers:
            return
        self._wanted_workers = wanted
        started = coordinator.resize(wanted)
        started = [process for process in started if self._processes.has_room(process)]
        for process in started:
            self._processes.add(process)
        names = ", ".join(process.name for process in started) or "no worker"
        self._log.record(Decision(what=f"start {names}", reason=f"{wanted} workers are wanted"))

    def _report_progress(self, elapsed_s: float) -> None:
        workers = self._processes.worker_progress
        rate = self._speed.rate(elapsed_s, sum(worker.samples for worker in workers))
        progress = combine(workers, epochs=self._request.job.epochs, elapsed_s=elapsed_s, rate=rate)
        self._notify(lambda one: one.progressed(progress))

    def _failure(self, failure: ProcessFailure) -> RunFailed:
        detail = failure.detail or self._processes.log_tail(failure.process)
        rank = self._processes.rank(failure.process)
        self._log.record(Failure(rank=rank, cause=failure.cause, detail=detail))
        return RunFailed(
            failure.cause,
            process=failure.process,
            rank=rank,
            detail=detail,
            exit_code=failure.exit_code,
        )

    def send(self, process: str, message: FromController) -> None:
        """Send a message to a process, for the coordinator."""
        self._server.send(process, message)

    def record(self, event: Event) -> None:
        """Write an event, for the coordinator; observers see switches and placements."""
        self._log.record(event)
        if isinstance(event, Switched):
            self._notify(lambda one: one.switched(event))
        elif isinstance(event, Placed):
            self._notify(lambda one: one.placed(event))

    def announce(self, report: EpochFigures) -> None:
        """Notify the observers of a finished epoch, for the coordinator."""
        self._notify(lambda one: one.epoch_done(report))

    def progress(self, process: str) -> Progress:
        """Return the progress in a process's last heartbeat, for the coordinator."""
        return self._processes.progress(process)

    def identity(self, process: str) -> Identity:
        """Return the present keys and incarnation of a process, for the coordinator."""
        return self._processes.identity(process)

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
        except StoreError as refusal:
            # A full disk must not hide the failure that is being reported.
            if error is None:
                raise
            _log.warning("the run could not be marked as %s: %s", state, refusal)

    def _notify(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            tell(observer)


def _interruption(number: int) -> PhalanxError:
    if number == signal.SIGINT:
        return Interrupted("interrupted by Ctrl-C; continue with `phalanx train --resume`")
    return Terminated("ended by SIGTERM; continue with `phalanx train --resume`")
