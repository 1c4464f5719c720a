"""Start the processes of a run, watch them, and end them on every way out.

Only the controller acts; `failure_policy` and the coordinator decide. It polls exit codes and
messages several times a second: a killed worker is noticed at once, a frozen one after its
heartbeat deadline.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from phalanx.control.coordinator import Coordinator, Identity
from phalanx.control.coordinator_choice import coordinator_of
from phalanx.control.failure_budget import FailureBudget
from phalanx.control.failure_policy import ProcessFacts, ProcessFailure
from phalanx.control.log_rotation import LogRotation
from phalanx.control.message_roles import check_sender
from phalanx.control.process_table import ProcessTable, RunRequest
from phalanx.control.progress import Observer, ObserverGroup, ProcessLoss, SpeedMeter, combine
from phalanx.control.run_end import RunFailed, describe_end, interruption, unforeseen
from phalanx.control.run_totals import RunTotals, earlier_totals
from phalanx.control.signals import CaughtSignals, catch_signals
from phalanx.control.summarize import summarise
from phalanx.control.tick_clock import TickClock
from phalanx.control.user_requests import UserRequests
from phalanx.control.work_times import add_times
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
from phalanx.records.position import describe_saved, newest_position
from phalanx.records.rundir import Status
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
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
    WorkTimes,
)

_log = logging.getLogger(__name__)

_TICK_S = 0.1


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
        self._observers = ObserverGroup(observers)
        self._speed = SpeedMeter()
        self._clock = TickClock()
        self._budget = FailureBudget(request.job.tolerated_failures)
        self._returning: set[str] = set()
        self._num_announced = 0
        self._log = EventLog(request.run.events_path("controller"))
        self._user = UserRequests(request.run, request.attempt, self._log.record)

    def run(self) -> Summary:
        """Run to the end; no process of the run is left on any way out.

        Returns:
            The summary, which is also in the run directory.

        Raises:
            RunFailed: A process was lost or failed, or the controller itself did.
            Interrupted: Ctrl-C.
            Terminated: SIGTERM.
        """
        try:
            summary = self._run()
        except PhalanxError as error:
            self._mark_ended(error)
            raise
        except Exception as error:  # the boundary of a run: whatever it is must not stay "running"
            failure = unforeseen(error, self._log.path)
            detail = "".join(traceback.format_exception(error))
            self._log.append_last(Failure(rank=None, cause=str(failure), detail=detail))
            self._mark_ended(failure)
            raise failure from error
        self._notify(lambda one: one.run_finished(summary))
        return summary

    def _run(self) -> Summary:
        run = self._request.run
        self._mark("running")
        before = earlier_totals(self._log.path, self._request.attempt)
        with (
            catch_signals() as caught,
            self._log as log,
            ControlServer(self._allocation.listen) as server,
            StoreServer(server, run.path) as store,
            LogRotation(run.path / "logs"),
        ):
            self._notify(lambda one: one.run_started(run.path, self._request.job))
            self._server, self._store = server, store
            self._totals = RunTotals(log, self._request.attempt, before)
            for note in self._launcher.notes:
                log.record(Warned(message=note))
            summary = self._supervise(caught)
        run.write_summary(summary)
        self._mark("finished")
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
        lost: dict[str, WorkTimes] = {}
        with self._sampler(log):
            self._carry_out(coordinator, caught, started)
            while coordinator.successor is not None:
                lost = add_times(lost, self._processes.lost_times)
                coordinator = coordinator.successor
                self._request = replace(self._request, resume=self._request.run.checkpoints)
                self._carry_out(coordinator, caught, started)
        outcome = coordinator.outcome()  # before its times, which it completes
        whole = self._totals.conclude(
            coordinator.times,
            add_times(lost, self._processes.lost_times),
            elapsed_s=time.monotonic() - started,
            startup_s=outcome.startup_s,
        )
        log.record(Finished(rank=-1, state="finished"))
        # Before the summary, which reads the logs, this one's last samples included.
        log.flush()
        return summarise(
            self._request.run,
            self._request.job,
            coordinator,
            threads=self._allocation.worker_threads,
            whole=whole,
        )

    def _carry_out(self, coordinator: Coordinator, caught: CaughtSignals, started: float) -> None:
        """Start a coordinator's processes and supervise them until all have ended."""
        server = self._server
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
            self._tell_end(error, time.monotonic() - started)
            # Asked before they are ended, so that they can close their logs.
            for name in roster.names:
                server.send(name, Stop(describe_end(error)))
            # A second Ctrl-C skips the grace period.
            roster.stop(0.0 if caught.times > 1 else grace_s)
            raise
        roster.stop(grace_s)

    def _tell_end(self, error: BaseException, elapsed_s: float) -> None:
        """Record and show why the run ends, before its processes are ended, which takes time."""
        reason, roster = describe_end(error), self._processes
        # The full disk that broke the run may refuse this too; the processes must end anyway.
        with contextlib.suppress(StoreError):
            self._log.record(Decision(what="stop all processes", reason=reason))
            self._totals.record(roster.worker_progress, roster.lost_times, elapsed_s)
        for observer_fault in self._observers.notify(lambda one: one.noted(f"ending: {reason}")):
            _log.warning("%s", observer_fault)

    def _make_coordinator(self) -> Coordinator:
        request = self._request
        found = newest_position(request.resume) if request.resume else None
        return coordinator_of(request.job).begin(request.job, self, found)

    def _watch(self, coordinator: Coordinator, caught: CaughtSignals, started: float) -> None:
        """Supervise until the run has finished; raises when it cannot go on."""
        roster = self._processes
        self._clock.skip()  # starting the processes
        while True:
            self._take_messages(coordinator)
            self._processes.heard(self._server.take_heard())
            self._tick()
            if caught.number is not None:
                raise interruption(caught.number, self._request.run.path)
            self._user.check_stop()
            self._request.check_owner()
            # Exit codes before messages: what a process sent before its exit is then read in the
            # same round, and one that has finished is not mistaken for a lost one.
            statuses = roster.poll()
            if not self._take_messages(coordinator, wait_s=0.0):
                statuses = {}  # the last words of a process that has ended may be unread
            facts = roster.facts(statuses)
            verdict = coordinator.judge(facts)
            if verdict.failure is not None:
                raise self._failure(self._with_pause(verdict.failure))
            if verdict.finished:
                return
            for failure in verdict.replace:
                self._replace(failure, coordinator)
            roster.start_due()
            self._user.carry_out(coordinator, roster)
            if verdict.replace:
                self._clock.skip()  # ending and starting processes on other machines takes time
            if roster.watchdog.is_stuck:
                raise self._failure(self._stuck(coordinator, facts))
            self._report_progress(time.monotonic() - started)

    def _tick(self) -> None:
        """Let the processes grow older, but not by the controller's own delays."""
        self._processes.age(self._clock.tick())
        pause_s = self._clock.new_pause_s
        if pause_s is not None:
            message = (
                f"the controller did not run for {pause_s:.1f} s: it was suspended, or its machine "
                "or disk is overloaded"
            )
            self._log.record(Warned(message=message))
            self._notify(lambda one: one.noted(message))

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
            self._note_return(name)
            if not isinstance(message, Hello | Heartbeat | Failed):
                check_sender(name, message)
                coordinator.take(name, message)
        except (ProtocolError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._processes.blame(name, str(error))

    def _note_return(self, name: str) -> None:
        if name in self._returning and self._processes.has_joined(name):
            self._returning.discard(name)
            self._notify(lambda one: one.noted(f"{name} is back"))

    def _replace(self, failure: ProcessFailure, coordinator: Coordinator) -> None:
        """Replace a lost process, or go on without it where no machine has room."""
        roster, name = self._processes, failure.process
        failure = self._with_pause(failure)
        given_up = self._budget.note(failure, self._clock.elapsed_s)
        if given_up is not None:
            raise self._failure(given_up)
        # Before the process leaves the table, which then knows nothing of it.
        final = self._failure(failure)
        delay_s, rank = self._budget.delay_s(name), roster.rank(name)
        # Before the successor starts: servers dismiss by role and rank, which the two share.
        coordinator.left(name)
        if roster.replace(name, crowd=not coordinator.can_shrink, delay_s=delay_s):
            what = f"replace {name}"
            machine = roster.machine(name)
            remedy = f"it starts again on {machine}" if machine else "it starts again"
            remedy += f" in {delay_s:g} s" if delay_s else ""
            self._returning.add(name)
        elif roster.worker_progress and name.startswith("worker-"):
            what = f"go on without {name}"
            remedy = "the run goes on without it: no other machine has a free slot"
        else:
            cause = f"{failure.cause}; no machine has room for its successor"
            raise RunFailed(cause, **(final.facts | {"exit_code": ExitCode.WORKER_LOST}))
        self._log.record(Decision(what=what, reason=f"{failure.cause}; {remedy}", rank=rank))
        loss = ProcessLoss(name, failure.cause, remedy, failure.lost_machine)
        self._notify(lambda one: one.process_lost(loss))

    def _with_pause(self, failure: ProcessFailure) -> ProcessFailure:
        return failure.after_pause(self._clock.recent_pause_s)

    def _report_progress(self, elapsed_s: float) -> None:
        roster = self._processes
        workers = roster.worker_progress
        self._totals.note(workers, roster.lost_times, elapsed_s)
        samples = {name: progress.samples for name, progress in workers.items()}
        rate = self._speed.rate(elapsed_s, samples)
        epochs = self._request.job.epochs
        progress = combine(list(workers.values()), epochs=epochs, elapsed_s=elapsed_s, rate=rate)
        self._notify(lambda one: one.progressed(progress))

    def _stuck(self, coordinator: Coordinator, facts: Sequence[ProcessFacts]) -> ProcessFailure:
        names = [one.process for one in facts if not one.done] or self._processes.names
        activities = {name: self._processes.progress(name).activity for name in names}
        return self._processes.watchdog.failure(coordinator.awaited(), activities)

    def _failure(self, failure: ProcessFailure) -> RunFailed:
        """Record a failure; returns the error that ends the run if nothing can be done."""
        detail = failure.detail or self._processes.log_tail(failure.process)
        rank = self._processes.rank(failure.process)
        self._log.record(Failure(rank=rank, cause=failure.cause, detail=detail))
        return RunFailed(
            failure.cause,
            process=failure.process,
            rank=rank,
            detail=detail,
            exit_code=failure.exit_code,
            lost_machine=failure.lost_machine,
            workers_left=self._processes.workers_beside(failure.lost_machine),
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

    def note(self, what: str, reason: str) -> None:
        """Record a decision and tell the observers, for the coordinator."""
        self._log.record(Decision(what=what, reason=reason))
        self._notify(lambda one: one.noted(f"{what}: {reason}"))

    def announce(self, report: EpochFigures) -> None:
        """Notify the observers of a finished epoch, for the coordinator."""
        self._num_announced = report.epoch + 1
        self._notify(lambda one: one.epoch_done(report))

    def declare(self, job: JobSpec) -> None:
        """Complete the job by what the user's script has declared, for the coordinator."""
        self._request = replace(self._request, job=job)
        self._notify(lambda one: one.declared(job))

    def show(self, text: str) -> None:
        """Show what the user's script has printed, for the coordinator."""
        self._notify(lambda one: one.printed(text))

    def progress(self, process: str) -> Progress:
        """Return the progress in a process's last heartbeat, for the coordinator."""
        return self._processes.progress(process)

    def learning_rate(self) -> float:
        """Return the learning rate of the worker that is furthest, for the coordinator."""
        workers = self._processes.worker_progress.values()
        return max(workers, key=lambda one: (one.epoch, one.step)).lr

    def identity(self, process: str) -> Identity:
        """Return the present keys and incarnation of a process, for the coordinator."""
        return self._processes.identity(process)

    def _mark_ended(self, error: PhalanxError) -> None:
        run = self._request.run
        error.facts.setdefault("run_dir", str(run.path))
        error.facts.setdefault(
            "saved", describe_saved(run.checkpoints, num_epochs=self._num_announced)
        )
        interrupted = isinstance(error, Interrupted | Terminated)
        self._mark("interrupted" if interrupted else "failed", error)

    def _mark(self, state: str, error: PhalanxError | None = None) -> None:
        status = Status.of_this_process(
            state,
            attempt=self._request.attempt,
            cause=str(error) if error else None,
            rank=error.facts.get("rank") if error else None,
        )
        try:
            # Who took the directory over writes its status from then on.
            self._request.check_owner()
            self._request.run.write_status(status)
        except StoreError as refusal:
            # A full disk must not hide the failure that is being reported.
            if error is None:
                raise
            _log.warning("the run could not be marked as %s: %s", state, refusal)

    def _notify(self, tell: Callable[[Observer], None]) -> None:
        for observer_fault in self._observers.notify(tell):
            self._log.record(Warned(message=observer_fault))
