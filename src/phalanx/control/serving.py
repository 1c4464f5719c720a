"""Coordinating a parameter server: hands out batches, measures, saves, and replaces what is lost.

The coordinator does not train. Tickets are handed out up to a gate, the end of an epoch or a
checkpoint. When all of them are done, the servers apply what they have gathered, the evaluator
reads their state, and training goes on while it still measures and writes. Workers that are lost
are replaced and their tickets given to others; a lost server gets its parameters back from the
worker with the freshest copy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
from typing_extensions import override

from phalanx.control.collect import summarise_servers
from phalanx.control.coordinator import Coordinator, Desk, Process
from phalanx.control.crew import Crew
from phalanx.control.feeding import Feeder, goes_in_rounds, is_held_back
from phalanx.control.looking import Looking
from phalanx.control.policy import ProcessFacts, Trouble, Verdict, Weight, diagnose
from phalanx.errors import ExitCode, SpecError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.facts import ServerFacts
from phalanx.wire.messages import Done, FromWorker, Outcome, WorkTimes
from phalanx.wire.phases import HandedOver, HandOver, Limit
from phalanx.wire.serving import (
    Copy,
    Finish,
    Flush,
    Flushed,
    Looked,
    Measured,
    Pause,
    Paused,
    Ready,
    Restored,
    Saved,
    ServerUp,
    WantWork,
    WorkDone,
)
from phalanx.wire.tickets import TicketPlan

# Errors that a new start would only repeat.
_HOPELESS = frozenset({"SpecError", "DataError", "EngineError", "StoreError"})


class ServingCoordinator(Coordinator):
    """For `parameter_server`.

    Args:
        job: What is to be done.
        desk: Who acts.
        position: Where to begin.
        limit: Where to hand over to another strategy; None: the job ends with this one.
        to_memory: Whether the next strategy goes on from what the workers hold; otherwise from
            what is written down at the limit.
        incarnations: Of processes that were replaced before this strategy began.
    """

    @classmethod
    @override
    def begin(cls, job: JobSpec, desk: Desk, found: Position | None) -> ServingCoordinator:
        return cls(job, desk, found or Position())

    def __init__(
        self,
        job: JobSpec,
        desk: Desk,
        position: Position,
        *,
        limit: Limit | None = None,
        to_memory: bool = True,
        incarnations: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        assert isinstance(job.strategy, ParameterServerSpec)
        self._job = job
        self._spec = job.strategy
        self._desk = desk
        self._position = position
        self._begun_at = msgspec.structs.replace(position)
        self._limit = limit
        self._to_memory = to_memory
        self._incarnations = incarnations
        self._connected: set[int] = set()  # workers that have a place at the servers
        self._asked: set[int] = set()  # workers that were told to read the last state
        self._read: set[int] = set()  # workers that have
        self._discarding = False
        self.is_unsaved = False
        """Whether nobody has written down the state that was handed over."""
        self.is_handed_over = False
        """Whether the workers hold everything, and another strategy may begin."""
        self._crew = Crew(self._num_servers, desk)
        self._looking = Looking(job, desk)
        self._plan: TicketPlan | None = None
        self._feeder: Feeder | None = None
        self._made = time.monotonic()
        self._opened: float | None = None
        self._startup_s: float | None = None
        self._unpaused: set[int] = set()
        self._late: set[int] = set()  # workers that wait for the next gate
        self._joining: set[int] = set()  # workers that the next gate waits for
        self._statistics: dict[int, bytes] = {}
        self._mean_statistics = b""
        self._pausing = False
        self._flushing = False
        self._closing = False
        self._unflushed: set[str] = set()
        self._versions: dict[int, int] = {}
        self._lost_at: dict[int, int] = {}  # versions of servers that are gone, when last heard of
        self._finishing = False
        self._precision = ""
        self._num_lost = 0
        self._num_workers = job.workers
        self.times: dict[str, WorkTimes] = {}
        self.servers: dict[str, ServerFacts] = {}
        self.num_lost_updates = 0

    @property
    def position(self) -> Position:
        """Where the run stands."""
        return self._position

    @property
    def statistics(self) -> bytes:
        """The mean of the workers' batch-norm statistics at the last gate."""
        return self._mean_statistics

    @property
    def has_looked(self) -> bool:
        """Whether the evaluator has measured and written everything that it was asked to."""
        return self._looking.is_idle

    @property
    def saved(self) -> str:
        """Name of the checkpoint that was written last."""
        return self._looking.saved.path if self._looking.saved is not None else ""

    @property
    def is_finishing(self) -> bool:
        """Whether the job is done and all are told to leave."""
        return self._finishing

    def turn(self, *, discard: bool = False) -> None:
        """Hand over to another strategy as soon as the batches that are begun are done.

        Args:
            discard: What was learnt here is given up: neither measure nor save it.
        """
        if self.is_handed_over:
            return
        self._discarding = discard
        if self._opened is not None and self._plan is not None and self._feeder is not None:
            unit = self._plan.unit(self._feeder.shorten())
            self._bring_forward(Limit(unit.epoch, unit.step))
            self._close_gate_when_drained()
        else:
            self._bring_forward(Limit(self._position.epoch, self._step_done()))
            self._go_on()

    def _bring_forward(self, limit: Limit) -> None:
        """End earlier than planned; then it is never for another phase with servers."""
        planned = self._limit
        if planned is None or (limit.epoch, limit.step) < (planned.epoch, planned.step):
            self._limit, self._to_memory = limit, True

    @property
    def _num_servers(self) -> int:
        return self._spec.num_servers(self._job.workers)

    @property
    @override
    def can_shrink(self) -> bool:
        # A worker with a slice of the parameters has to come back somewhere.
        return self._spec.servers != "colocated"

    @override
    def processes(self) -> Sequence[Process]:
        return [
            *(Process("server", rank) for rank in range(self._job.processes.servers)),
            *(Process("worker", rank) for rank in range(self._job.workers)),
            Process("evaluator", 0),
        ]

    @override
    def take(self, process: str, message: FromWorker) -> None:
        match message:
            case ServerUp():
                self._crew.server_up(process, message.address, restoring=message.restoring)
                self._dismiss_latecomer(process)
                self._flush_when_paused()
            case Ready():
                self._peer_ready(process, message)
            case WantWork():
                assert self._feeder is not None, "asked for work before its own report"
                self._connected.add(_rank(process))
                self._feeder.want(_rank(process), message.count, self._mean_statistics)
                self._joining.discard(_rank(process))
                if _rank(process) in self._unpaused:
                    self._desk.send(process, self._pause())
                self._go_on()
            case WorkDone():
                self._count(_rank(process), message)
            case Paused():
                self._paused(_rank(process), message)
            case Copy():
                self._crew.copy_offered(process, message.server, message.version)
            case Restored():
                self._restored(message)
            case Flushed():
                self._flushed(process, message)
            case HandedOver():
                self._handed_over(_rank(process))
            case Looked() | Measured() | Saved():
                self._looking.take(message, self._position)
                self._close_stretch()
            case Done():
                self._done(process, message)
            case _:
                raise AssertionError(f"{process} said {message}, which is not for this coordinator")

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> Verdict:
        lost: list[Trouble] = []
        for facts in processes:
            found = diagnose(facts, self._job.deadlines)
            if found is None:
                continue
            weight, trouble = found
            hopeless = facts.error is not None and facts.error.kind in _HOPELESS
            if hopeless or weight == Weight.NEVER_JOINED:
                return Verdict(trouble=trouble)
            lost.append(trouble)
        if self._finishing:
            # Whoever goes now has nothing left to do but to say goodbye.
            gone = {trouble.process for trouble in lost}
            over = all(f.exit_code is not None or f.process in gone for f in processes)
            return Verdict(finished=over)
        if self._num_lost + len(lost) > self._spec.max_failures:
            worst = lost[-1]
            return Verdict(
                trouble=Trouble(
                    process=worst.process,
                    cause=f"{worst.cause}; that is loss number {self._num_lost + len(lost)}, and "
                    f"strategy.max_failures allows {self._spec.max_failures}",
                    exit_code=ExitCode.WORKER_LOST,
                    detail=worst.detail,
                )
            )
        if self._feeder is not None:
            self._feeder.nudge()
        return Verdict(replace=tuple(lost))

    @override
    def left(self, process: str) -> None:
        self._num_lost += 1
        role, rank = process.split("-")[0], _rank(process)
        if role == "server":
            self._server_left(rank)
            return
        if role == "worker":
            self._late.discard(rank)
            self._joining.discard(rank)
            self._statistics.pop(rank, None)
            for group in (self._connected, self._asked, self._read):
                group.discard(rank)
            if self._spec.servers == "colocated":
                self._server_left(rank)
        else:
            self._looking.evaluator_left()
        self._crew.peer_left(Process(role, rank))
        self._close_stretch()
        if role == "worker" and self._feeder is not None:
            returned = self._feeder.lose(rank)
            self._desk.record(
                events.Decision(
                    what=f"give {returned} batches of {process} to others",
                    reason="it is gone",
                    rank=rank,
                )
            )
            self._unpaused.discard(rank)
            self._flush_when_paused()
        if role == "worker":
            if not self._crew.workers:
                self._admit_late()
            self._go_on()

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        first, self._num_workers = self._num_workers, max(self._num_workers, num_workers)
        return [Process("worker", rank) for rank in range(first, self._num_workers)]

    def summary(self) -> ServingSummary:
        """What the servers saw while this strategy was at work."""
        begun = self._begun_at
        return summarise_servers(
            self._spec,
            self.servers,
            updates=self._position.updates - begun.updates,
            train_s=self._position.train_s - begun.train_s,
            updates_lost=self.num_lost_updates,
            processes_replaced=self._num_lost,
        )

    @override
    def outcome(self) -> Outcome:
        position, looking = self._position, self._looking
        saved, test = looking.saved, looking.test
        assert saved is not None, "a run with parameter servers ends with a checkpoint"
        self.serving = self.summary()
        return Outcome(
            precision=self._precision,
            parameters=saved.parameters,
            epochs=position.epoch,
            samples=position.samples,
            updates=position.updates,
            train_s=position.train_s,
            evaluate_s=position.evaluate_s,
            startup_s=self._startup_s or 0.0,
            stopped_early=position.stopped_early,
            train_loss=position.train_loss,
            train_accuracy=position.train_accuracy,
            regularisation=looking.regularisation,
            val_loss=position.val_loss,
            val_accuracy=position.val_accuracy,
            test_loss=test.loss if test else None,
            test_accuracy=test.accuracy if test else None,
            val_metrics=looking.val_metrics,
            test_metrics=test.metrics if test else {},
            parameters_sha256=saved.parameters_sha256,
        )

    def _peer_ready(self, process: str, message: Ready) -> None:
        role, rank = process.split("-")[0], _rank(process)
        if role == "worker" and self._is_newcomer(process):
            self._late.add(rank)
            if self._opened is None or not self._crew.workers:
                self._admit_late()
        else:
            self._crew.peer_up(Process(role, rank))
        self._dismiss_latecomer(process)
        if role == "evaluator":
            self._looking.evaluator_ready()
            return
        self._precision = message.precision
        if self._spec.servers == "colocated" and not message.serves:
            self._crew.server_without_slice(_rank(process))
            self._flush_when_paused()
        if self._plan is None:
            self._make_plan(message)

    def _is_newcomer(self, process: str) -> bool:
        """Whether a worker comes into rounds that others have begun.

        Where every update takes a gradient of everyone, it must begin with the same update at every
        server. While updates are being made, several servers cannot agree on one, so it waits for
        the next gate; and the gate waits for it.
        """
        before = self._incarnations.get(process, 1)
        is_new = (
            self._desk.identity(process).incarnation > before or _rank(process) >= self._job.workers
        )
        in_rounds = goes_in_rounds(self._spec, self._job.workers)
        return in_rounds and self._num_servers > 1 and is_new

    def _admit_late(self) -> None:
        """Everything rests, so whoever had to wait may come in."""
        for rank in self._late:
            self._joining.add(rank)
            self._crew.peer_up(Process("worker", rank))
        self._late.clear()

    def _make_plan(self, message: Ready) -> None:
        batch, position = self._job.global_batch, self._position
        plan = TicketPlan.of(
            message.num_samples,
            global_batch=batch,
            num_parts=self._job.workers,
            portions=message.portions,
        )
        if not plan.begins_at(position.epoch_samples):
            raise SpecError(
                f"the checkpoint stands {position.epoch_samples} samples into an epoch, which is "
                f"not a whole number of global batches of {batch}; resume with the batch of the "
                "saved run"
            )
        self._plan = plan
        self._feeder = Feeder(self._spec, self._plan, crew=self._crew, desk=self._desk)
        if self._is_over or self._is_at_limit:
            # Resumed at the end: only look at what there is, with what the workers know of it.
            self._pausing = True
            self._unpaused = set(range(self._job.workers))
            for rank in self._connected:
                self._desk.send(f"worker-{rank}", self._pause())
        else:
            self._open_gate()

    def _step_done(self) -> int:
        """The first step of the epoch that is not done."""
        if self._plan is None:
            return -(-self._position.epoch_samples // self._job.global_batch)
        return self._plan.step_at(self._position.epoch_samples)

    def _open_gate(self) -> None:
        """Let the next stretch begin: up to the end of the epoch, or to the next checkpoint."""
        assert self._plan is not None
        assert self._feeder is not None
        position, plan = self._position, self._plan
        step = self._step_done()
        every = self._job.checkpoint.every_steps
        stop = plan.num_steps if every is None else min(plan.num_steps, step + every)
        if self._limit is not None and self._limit.epoch == position.epoch:
            stop = min(stop, self._limit.step)
        self._opened = time.monotonic()
        self._looking.training_goes_on()
        if self._startup_s is None:
            self._startup_s = self._opened - self._made
        self._feeder.open(
            plan.first(position.epoch, step),
            plan.first(position.epoch, stop),
            self._mean_statistics,
        )

    def _count(self, worker: int, message: WorkDone) -> None:
        assert self._feeder is not None
        position = self._position
        for one in self._feeder.count(worker, message):
            position.samples += one.num_samples
            position.epoch_samples += one.num_samples
            position.epoch_loss_sum += one.loss_sum
            position.epoch_correct += one.num_correct
        self._close_gate_when_drained()
        self._feeder.feed(worker)

    def _close_gate_when_drained(self) -> None:
        assert self._feeder is not None
        if self._feeder.is_drained and self._opened is not None:
            self._feeder.close()
            self._position.train_s += time.monotonic() - self._opened
            self._opened = None
            self._pausing = True
            self._unpaused = set(self._crew.workers)
            for other in self._unpaused:
                self._desk.send(f"worker-{other}", self._pause())

    def _pause(self) -> Pause:
        """Rest; where others would wait for an idle worker, it leaves the servers meanwhile."""
        return Pause(leave=is_held_back(self._spec, self._job.workers))

    def _paused(self, worker: int, message: Paused) -> None:
        self._statistics[worker] = message.statistics
        self._unpaused.discard(worker)
        self._flush_when_paused()

    def _flush_when_paused(self) -> None:
        """Once everybody rests, have the servers apply what is still gathered.

        Only when all of them are there: a server that was lost meanwhile has to come back first.
        """
        if self._pausing and not self._unpaused and self._crew.is_complete:
            self._mean_statistics = mean_of(list(self._statistics.values()))
            self._pausing = False
            self._flushing = True
            self._unflushed = set(self._crew.hosts)
            for server in self._unflushed:
                self._desk.send(server, self._flush_order())

    def _flush_order(self) -> Flush:
        assert self._plan is not None
        # Servers of their own hand the optimiser's state over through what they write.
        write = not (self._is_handed_on_in_memory and self._spec.servers == "colocated")
        done_below = self._plan.first(self._position.epoch, self._step_done())
        return Flush(done_below=done_below, write=write)

    @property
    def _is_handed_on_in_memory(self) -> bool:
        """Whether the workers take everything from here, and nobody looks at it before."""
        assert self._plan is not None
        in_epoch = 0 < self._step_done() < self._plan.num_steps
        return self._discarding or (self._is_at_limit and self._to_memory and in_epoch)

    def _flushed(self, process: str, message: Flushed) -> None:
        self._versions[message.server] = message.version
        self._unflushed.discard(process)
        if self._flushing and not self._unflushed:
            self._flushing = False
            self._closing = True
            self._close_stretch()

    def _close_stretch(self) -> None:
        """Everything up to the gate is applied: note it, and have it looked at.

        The evaluator finishes the look before this one first; the servers rest so long.
        """
        if not self._closing or not self._looking.is_idle:
            self._go_on()
            return
        self._closing = False
        assert self._plan is not None
        position = self._position
        position.updates = max(self._versions.values(), default=0)
        end_of_epoch = self._step_done() >= self._plan.num_steps
        if self._is_handed_on_in_memory:
            self.is_unsaved = not self._discarding
            self._go_on()
            return
        if end_of_epoch:
            position.train_loss = position.epoch_loss_sum / max(1, position.epoch_samples)
            position.train_accuracy = position.epoch_correct / max(1, position.epoch_samples)
            position.epoch += 1
            position.epoch_samples = position.epoch_correct = 0
            position.epoch_loss_sum = 0.0
        self._looking.begin(
            position,
            end_of_epoch=end_of_epoch,
            statistics=self._mean_statistics,
            pin=self._is_at_limit and not self._to_memory and not self._is_over,
        )
        self._go_on()

    def _go_on(self) -> None:
        """Open the next gate, or finish, as soon as nothing stands in the way."""
        busy = self._opened is not None or self._pausing or self._flushing or self._closing
        if busy or self._finishing or self._plan is None:
            return
        over = self._is_over
        if not over and self._is_at_limit:
            self._hand_over()
        elif over and self._looking.is_idle:
            if self._looking.test_due:
                self._looking.begin_test()
                return
            self._finishing = True
            late = [f"worker-{rank}" for rank in self._late]
            for process in (*self._crew.hosts, *self._crew.peers, *late):
                self._desk.send(process, Finish())
        elif not over and self._looking.may_train:
            self._admit_late()
            if not self._joining:
                self._open_gate()

    @property
    def _is_at_limit(self) -> bool:
        if self._limit is None:
            return False
        limit = (self._limit.epoch, self._limit.step)
        return (self._position.epoch, self._step_done()) >= limit

    def _hand_over(self) -> None:
        """Have all workers read the last state, once it has been looked at.

        A worker that was lost is waited for: the next strategy may need all of them.
        """
        looked = self._looking.has_measured if self._to_memory else self._looking.is_idle
        if not looked or self.is_handed_over:
            return
        self._admit_late()
        everybody = set(range(self._job.workers))
        read = not (self._to_memory and self._spec.servers == "colocated")
        if self._connected >= everybody:
            for rank in everybody - self._asked:
                self._asked.add(rank)
                self._desk.send(f"worker-{rank}", HandOver(read=read))

    def _handed_over(self, worker: int) -> None:
        if worker not in self._asked:
            return  # a predecessor of the one who is there now
        self._read.add(worker)
        if self._read >= set(range(self._job.workers)) and not self.is_handed_over:
            self.is_handed_over = True
            for process in {*self._crew.hosts, *self._crew.peers}:
                self._desk.send(process, Finish())

    @property
    def _is_over(self) -> bool:
        return self._position.epoch >= self._job.epochs or self._position.stopped_early

    def _dismiss_latecomer(self, process: str) -> None:
        """A process that was replaced shortly before the end has nothing left to do."""
        if self._finishing:
            self._desk.send(process, Finish())

    def _server_left(self, server: int) -> None:
        process = self._crew.host_of(server)
        if process is None:
            return  # before it had ever served
        last = self._desk.progress(process).version
        self._lost_at[server] = self._versions[server] = max(self._versions.get(server, 0), last)
        self._crew.server_left(server)

    def _restored(self, message: Restored) -> None:
        lost = max(0, self._lost_at.pop(message.server, 0) - message.version)
        self.num_lost_updates += lost
        self._crew.server_restored(message.server)
        self._desk.record(
            events.ServerRestored(
                server=message.server,
                version=message.version,
                lost_updates=lost,
                optimizer_version=message.optimizer_version,
            )
        )
        host = self._crew.host_of(message.server)
        if host is not None and host in self._unflushed:
            self._desk.send(host, self._flush_order())

    def _done(self, process: str, message: Done) -> None:
        if message.times is not None:
            self.times[process] = message.times
        if message.server is not None:
            self.servers[process] = message.server
        elif process.startswith("server-") and not self._finishing:
            self._crew.server_without_slice(_rank(process))
            self._flush_when_paused()


def _rank(process: str) -> int:
    return int(process.rsplit("-", 1)[1])


def mean_of(statistics: Sequence[bytes]) -> bytes:
    """The mean of the workers' batch-norm statistics; empty if the model has none."""
    arrays = [np.frombuffer(one, dtype=np.float32) for one in statistics if one]
    if not arrays:
        return b""
    return np.mean(arrays, axis=0, dtype=np.float64).astype(np.float32).tobytes()
