"""Coordinate a group of workers that exchange in every step: all of them run, or none."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from typing_extensions import override

from phalanx.control.coordinator import ControllerApi, Coordinator, Process, Splitting
from phalanx.control.failure_policy import ProcessFacts, RunVerdict, find_cause
from phalanx.errors import LaunchError
from phalanx.records.events import Placed
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import Done, EpochDone, FromWorker, RunOutcome, WorkTimes
from phalanx.wire.split import PlacementReport, SplitFacts


class SynchronousCoordinator(Coordinator):
    """Coordinate strategies without servers; the workers themselves exchange and checkpoint."""

    @classmethod
    @override
    def begin(
        cls, job: JobSpec, api: ControllerApi, found: Position | None
    ) -> SynchronousCoordinator:
        # Workers read the checkpoint themselves.
        return cls(job, api)

    def __init__(self, job: JobSpec, api: ControllerApi) -> None:
        self._job = job
        self._api = api
        self._outcome: RunOutcome | None = None
        self._suspicion: float | None = None
        self.times: dict[str, WorkTimes] = {}
        self._placed: Placed | None = None
        self._split: dict[str, SplitFacts] = {}

    @override
    def processes(self) -> Sequence[Process]:
        return [Process("worker", rank) for rank in range(self._job.workers)]

    @override
    def take(self, process: str, message: FromWorker) -> None:
        if isinstance(message, EpochDone):
            self._api.announce(message.figures)
        elif isinstance(message, PlacementReport):
            self._placed = msgspec.json.decode(message.event, type=Placed)
            self._api.record(self._placed)
        elif isinstance(message, Done):
            if message.split is not None:
                self._split[process] = message.split
                if self._placed is not None:
                    self.splitting = Splitting(self._placed, self._split)
            if message.times is not None:
                self.times[process] = message.times
            if process == "worker-0":
                self._outcome = message.outcome

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        now = time.monotonic()
        deadlines = self._job.deadlines
        # A process that is done sends no heartbeats while it exits, which takes its time on a busy
        # machine: that is not frozen.
        busy = [facts for facts in processes if not facts.done or facts.exit_code is not None]
        wrong, cause = find_cause(
            busy,
            deadlines=deadlines,
            since_suspicion_s=None if self._suspicion is None else now - self._suspicion,
        )
        if wrong and self._suspicion is None:
            self._suspicion = now
        # One that has still not exited by then is done all the same, and is ended.
        finished = not wrong and all(
            facts.done and (facts.exit_code == 0 or facts.silent_s > deadlines.heartbeat_s)
            for facts in processes
        )
        return RunVerdict(finished=finished, failure=cause)

    @override
    def left(self, process: str) -> None:
        raise LaunchError(f"{process} cannot be replaced in a group that needs all of its workers")

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        return ()

    @override
    def outcome(self) -> RunOutcome:
        assert self._outcome is not None, "asked before the chief had finished"
        return self._outcome
