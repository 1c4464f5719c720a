"""Coordinate a synchronous group that goes on when workers are lost, and takes successors in.

`membership` decides who trains together; this carries its orders out, says on the screen what
happens, and ends the run where nobody is left to go on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from phalanx.control.coordinator import Awaited, ControllerApi
from phalanx.control.elastic.membership import Formation, GroupMembership, GroupState, Orders
from phalanx.control.failure_policy import (
    ProcessFacts,
    ProcessFailure,
    RunVerdict,
    Severity,
    diagnose,
)
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.errors import ExitCode
from phalanx.records.events import Epoch
from phalanx.spec.job import JobSpec
from phalanx.wire.elastic import NO_STATE, CaughtUp, FormGroup, GroupMember, Halted, JoinRequest
from phalanx.wire.messages import Done, EpochDone, FromWorker

# Groups of the same members that may break off one after another without a step between them.
_MOST_BREAKS = 3
# Errors of a worker that its machine or link may be to blame for; all others would come again.
_EXCUSED = frozenset({"PeerError", "ProtocolError", "TimeoutExpired"})


class ElasticCoordinator(SynchronousCoordinator):
    """Coordinate the workers of an elastic run."""

    def __init__(self, job: JobSpec, api: ControllerApi) -> None:
        super().__init__(job, api)
        assert job.elastic is not None
        self._minimum = job.elastic.min
        names = [process.name for process in self.processes()]
        self._membership = GroupMembership(names, minimum=self._minimum)
        self._told = Formation(0, (), NO_STATE)
        self._cause = ""
        self._suspects: Counter[str] = Counter()
        self._num_breaks = 0
        self._short_since: float | None = None
        self._next_epoch = 0
        self._untold: list[tuple[str, str]] = []
        """Told when `judge` is called again: after the loss that is the cause."""

    @property
    @override
    def can_shrink(self) -> bool:
        return True

    @override
    def take(self, process: str, message: FromWorker) -> None:
        group = self._membership
        if isinstance(message, JoinRequest):
            self._give(group.ready(process))
        elif isinstance(message, Halted):
            self._note_break(message)
            planned = message.planned
            self._give(group.halted(process, message.generation, message.commits, planned=planned))
        elif isinstance(message, CaughtUp):
            self._give(group.caught_up(process, message.generation))
        elif isinstance(message, EpochDone):
            self._take_epoch(message)
        elif isinstance(message, Done):
            if message.times is not None:
                self.times[process] = message.times
            # All have the same; the chief may be lost before it can say so.
            self._outcome = self._outcome or message.outcome
            self._give(group.finished(process))

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        self._tell_all()
        limit_s = self._job.deadlines.heartbeat_s
        busy = [one for one in processes if not one.done or one.exit_code not in (None, 0)]
        lost: list[ProcessFailure] = []
        for facts in busy:
            found = diagnose(facts, self._job.deadlines)
            if found is None:
                continue
            severity, failure = found
            if self._is_fatal(severity, facts):
                return RunVerdict(failure=failure)
            lost.append(failure)
        lost = lost or self._hindrance(processes)
        if lost:
            return self._bear(lost)
        expired = self._expired()
        if expired is not None:
            return RunVerdict(failure=expired)
        left = all(one.exit_code == 0 or one.silent_s > limit_s for one in processes if one.done)
        is_over = self._outcome is not None and not self._membership.present
        return RunVerdict(finished=is_over and left)

    @override
    def awaited(self) -> Sequence[Awaited]:
        unreported = sorted(self._membership.unreported)
        return [Awaited(name, "its report of the last group") for name in unreported]

    @override
    def left(self, process: str) -> None:
        self._give(self._membership.lost(process))

    def _take_epoch(self, message: EpochDone) -> None:
        """Announce an epoch once: a chief may be lost before the others know that it is over."""
        if message.figures.epoch < self._next_epoch:
            return
        self._next_epoch = message.figures.epoch + 1
        self._api.record(Epoch.of(message.figures))
        self._api.announce(message.figures)

    def _is_fatal(self, severity: Severity, facts: ProcessFacts) -> bool:
        """Return whether a successor would meet the same, or the job has not even begun."""
        if severity is Severity.OWN_ERROR:
            return facts.error is not None and facts.error.kind not in _EXCUSED
        has_begun = self._membership.generation > 0
        return severity is Severity.NEVER_JOINED and not has_begun

    def _bear(self, lost: Sequence[ProcessFailure]) -> RunVerdict:
        """Go on without these, unless nobody else has the state of the run."""
        first, gone = lost[0], {failure.process for failure in lost}
        self._cause = "; ".join(failure.cause for failure in lost)
        formed = self._membership.formation
        holders = self._membership.present & frozenset(formed.active)
        if formed.generation > 0 and not holders - gone and self._outcome is None:
            cause = f"{first.cause}; no other worker has the state of the run"
            return RunVerdict(failure=replace(first, cause=cause))
        return RunVerdict(replace=tuple(lost))

    def _hindrance(self, processes: Sequence[ProcessFacts]) -> list[ProcessFailure]:
        """Return the worker that others wait for in vain again and again, though it is alive."""
        if self._num_breaks < _MOST_BREAKS or not self._suspects:
            return []
        process, _ = self._suspects.most_common(1)[0]
        if process not in {one.process for one in processes}:
            return []
        self._num_breaks = 0
        cause = f"{process} is alive, but the others cannot exchange with it"
        return [ProcessFailure(process, cause, ExitCode.WORKER_LOST)]

    def _expired(self) -> ProcessFailure | None:
        """Return why the run ends, if too few workers are left and no successor has come."""
        if self._membership.state is not GroupState.SHORT:
            self._short_since = None
            return None
        now, limit_s = time.monotonic(), self._job.deadlines.start_s
        if self._short_since is None:
            self._short_since = now
            missing = self._membership.missing
            what = f"waiting for {missing} more worker{'s' if missing > 1 else ''}"
            self._api.note(what, f"elastic.min is {self._minimum}")
        if now - self._short_since < limit_s:
            return None
        cause = (
            f"{self._cause}; that leaves fewer than {self._minimum} workers (elastic.min), and no "
            f"successor joined within {limit_s:g} s (deadlines.start_s)"
        )
        return ProcessFailure(min(self._membership.present), cause, ExitCode.WORKER_LOST)

    def _note_break(self, message: Halted) -> None:
        if not message.planned and message.suspects:
            self._suspects.update(message.suspects)

    def _give(self, orders: Orders) -> None:
        formed = self._membership.formation
        if formed.generation > self._told.generation:
            self._compare(formed)
        for process, order in orders:
            if isinstance(order, Formation):
                self._api.send(process, _order_of(order))
            else:
                self._api.send(process, order)

    def _tell_all(self) -> None:
        told, self._untold = self._untold, []
        for what, reason in told:
            self._api.note(what, reason)

    def _compare(self, formed: Formation) -> None:
        """Say who trains together now, and count groups that came to nothing."""
        before, self._told = self._told, formed
        is_same = set(before.members) == set(formed.members) and before.base == formed.base
        self._num_breaks = self._num_breaks + 1 if is_same else 0
        if not is_same:
            self._suspects.clear()
        if before.generation == 0:
            return
        gone = [name for name in before.members if name not in formed.members]
        come = [name for name in formed.members if name not in before.members]
        reasons = [f"without {', '.join(gone)}"] if gone else []
        reasons += [f"{', '.join(come)} joined"] if come else []
        if reasons:
            number = len(formed.members)
            what = f"{number} workers go on" if number > 1 else "1 worker goes on"
            self._untold.append((what, " and ".join(reasons)))


def _order_of(formed: Formation) -> FormGroup:
    members = tuple(GroupMember(name, name not in formed.donors) for name in formed.members)
    return FormGroup(formed.generation, members, formed.base)
