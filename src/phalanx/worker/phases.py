"""Processes that change roles: one strategy after another, without a restart.

Data, model and optimiser are made once. Between two phases a process waits for `Begin`, which says
what comes next and where it begins; what is carried over is listed in `handover`.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.comm.board import BoardStore
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.solo import SoloCollective
from phalanx.errors import StoreError
from phalanx.protocol.shards import Layout
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.phases import phase_job, strategy_of
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import SwitchSpec
from phalanx.strategy.allreduce import Allreduce
from phalanx.strategy.base import Strategy, build_strategy
from phalanx.wire.deadline import Deadline
from phalanx.wire.messages import Done, PhaseOver
from phalanx.wire.phases import Begin, Begun, Idle
from phalanx.wire.serving import Finish
from phalanx.worker import handover
from phalanx.worker.checkpoint import NEWEST, Checkpoints, unpinned
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief
from phalanx.worker.council import Council
from phalanx.worker.evaluator import run_evaluator
from phalanx.worker.handover import Entry
from phalanx.worker.inject import Slowdown
from phalanx.worker.loop import Reporting, Trainee, TrainLoop
from phalanx.worker.rate import ramp_into
from phalanx.worker.replica import Basis, build_replica, settle_precision
from phalanx.worker.served import ServedWorker
from phalanx.worker.server import run_server
from phalanx.worker.serverfile import read_optimizer
from phalanx.worker.station import Station

# A newcomer waits so long for the state that the chief is still writing.
_SNAPSHOT_S = 10.0


def run_switching_worker(station: Station) -> Done:
    """Train in one phase after another."""
    torch.set_num_threads(station.spec.threads)
    station.tally.activity = "reading data"
    dataset = station.open_data()
    precision = settle_precision(station.job, dataset, SoloCollective())
    replica = build_replica(station.job, dataset, rank=station.spec.rank, precision=precision.name)
    startup_s = station.record_start(precision.name, precision.reason)
    with ExitStack() as stack:
        basis = Basis(dataset, precision, replica)
        return SwitchingWorker(station, basis, stack, startup_s=startup_s).run()


def run_switching_helper(station: Station) -> Done:
    """Be a server or the evaluator in the phases that have them."""
    control = station.control
    num_samples = station.open_data().train.num_samples
    control.send(Idle(num_samples=num_samples))
    while True:
        station.tally.activity = "waiting for a phase"
        # Waits until the next phase or the end of this process: the lifelines see to that.
        order = control.inbox.get()
        if isinstance(order, Finish):
            return Done()
        if not isinstance(order, Begin):
            continue  # of the phase before, and too late
        phase = phase_station(station, order)
        if station.spec.role == "evaluator":
            done = run_evaluator(phase)
        else:
            done = run_server(phase, entry_of(station, order))
        control.send(PhaseOver(server=done.server))


def phase_station(station: Station, order: Begin) -> Station:
    """A process's place in one phase."""
    job = phase_job(station.job, order.phase, order.shares)
    resume = station.spec.resume if order.checkpoint == NEWEST else None
    spec = station.spec.model_copy(update={"job": job, "resume": resume})
    return replace(station, spec=spec)


def entry_of(station: Station, order: Begin) -> Entry:
    """How a process comes into a phase with servers."""
    position = msgspec.json.decode(order.position, type=Position)
    strategy = strategy_of(station.job, order.phase)
    assert isinstance(strategy, ParameterServerSpec)
    ramp = None if strategy.synchronous else ramp_into(station.job, position)
    if order.checkpoint == NEWEST:
        return Entry(restoring=order.newcomer, checkpoint=NEWEST, ramp=ramp)
    checkpoint = order.checkpoint or None
    if checkpoint is not None and not _appears(station, checkpoint):
        if not order.newcomer:
            raise StoreError(f"the state that a phase begins with was never written: {checkpoint}")
        # The one who was writing it is gone. Others hold the parameters; the momentum is lost.
        message = f"{checkpoint} was never written: going on without the momentum in it"
        station.log.record(events.Warned(message=message))
        checkpoint = None
    return Entry(
        position=position if position.phase_begin > 0 else None,
        restoring=order.newcomer,
        checkpoint=checkpoint,
        ramp=ramp,
        momentum=handover.momentum_factor(station.job, asynchronous=not strategy.synchronous),
    )


def _appears(station: Station, name: str) -> bool:
    """Whether a checkpoint that may still be on its way is there in time."""
    checkpoints = Checkpoints(station.store, station.job.checkpoint)
    deadline = Deadline.after(_SNAPSHOT_S, f"{name} to be written")
    while not checkpoints.has(name) and not deadline.expired:
        threading.Event().wait(0.25 if checkpoints.is_remote else 0.05)
        if checkpoints.is_coming(unpinned(name)):
            # Whoever sends it has a deadline of its own.
            deadline = Deadline.after(_SNAPSHOT_S, f"{name} to be written")
    return checkpoints.has(name)


@dataclass(frozen=True)
class _Served:
    """The phase before had servers, which still hold the optimiser's state."""

    layout: Layout
    colocated: bool


class SwitchingWorker:
    """One worker's way through the phases of a job.

    Args:
        station: Its place in the run.
        basis: Data and model, for all phases.
        stack: Closes what it opens.
        startup_s: How long it took until here.
    """

    def __init__(
        self, station: Station, basis: Basis, stack: ExitStack, *, startup_s: float
    ) -> None:
        assert isinstance(station.job.strategy, SwitchSpec)
        self._station = station
        self._switch = station.job.strategy
        self._basis = basis
        self._stack = stack
        self._startup_s = startup_s
        self._collective: Collective | None = None
        self._group = -1
        self._strategy: Strategy | None = None
        self._strategy_spec: StrategySpec | None = None
        self._council: Council | None = None
        self._served: _Served | None = None
        self._stopped = time.monotonic()
        self._slowdown = Slowdown(station.job.inject, rank=station.spec.rank)
        self._has_room = False
        checkpoints = Checkpoints(station.store, station.job.checkpoint)
        self._checkpointer = AsyncCheckpointer(checkpoints, station.log)
        stack.callback(self._checkpointer.wait)

    def run(self) -> Done:
        """Take up phases until the job is done."""
        control = self._station.control
        control.send(Idle(num_samples=self._basis.dataset.train.num_samples))
        while True:
            self._station.tally.activity = "waiting for a phase"
            # Waits until the next phase or the end of this process: the lifelines see to that.
            order = control.inbox.get()
            if isinstance(order, Finish):
                # Other processes go on with the run.
                return Done(times=self._station.tally.times(sent_bytes=0))
            if not isinstance(order, Begin):
                continue  # of the phase before, and too late
            serving = strategy_of(self._station.job, order.phase).updates_on_servers
            done = self._serve(order) if serving else self._train(order)
            if done is not None:
                return done

    def _train(self, order: Begin) -> Done | None:
        """A lockstep phase; None: the run goes on with another."""
        phase, replica = phase_station(self._station, order), self._basis.replica
        collective = self._join(order.group)
        tally = self._station.tally
        position = msgspec.json.decode(order.position, type=Position)
        handover.set_statistics(replica, order.statistics)
        equal = self._served is not None
        self._take_back(collective)
        self._checkpointer.copy_staged(serving=False)
        strategy = self._attach(phase, collective, equal=equal)
        self._council = self._convene(strategy, collective)
        tally.sent_before = tally.sent_bytes - collective.sent_bytes
        self._take_sums(position)
        loop = TrainLoop(
            phase.job,
            trainee=Trainee(self._basis.dataset, replica, strategy, collective),
            checkpointer=self._checkpointer,
            reporting=Reporting(
                log=phase.log,
                control=phase.control,
                tally=tally,
                profiler=phase.profiler,
                sampler=phase.sampler,
                run=phase.run,
            ),
            position=position,
            council=self._council,
            slowdown=self._slowdown,
        )
        if order.checkpoint:
            self._restore(loop, order.checkpoint, position)
        if order.save:
            self._keep(loop)
        phase.control.send(Begun(pause_s=time.monotonic() - self._stopped))
        self._checkpointer.write_staged()
        self._make_room()
        loop.advance(order.stop)
        if loop.is_over:
            self._checkpointer.wait()
            outcome = loop.conclude(precision=self._basis.precision.name, startup_s=self._startup_s)
            return Done(times=loop.times(), outcome=outcome)
        self._stopped = time.monotonic()
        self._end(loop, order)
        return None

    def _restore(self, loop: TrainLoop, checkpoint: str, position: Position) -> None:
        """Take up a checkpoint: that of a run that is resumed, or one to go back to."""
        loop.restore(checkpoint)
        if checkpoint != NEWEST and self._station.spec.rank == 0:
            self._checkpointer.checkpoints.go_back_to(checkpoint)
        loop.position.phase = position.phase
        loop.position.phase_begin = position.phase_begin

    def _keep(self, loop: TrainLoop) -> None:
        """Have the state written down with which the phase begins."""
        state = loop.state()
        if self._station.spec.rank == 0:
            self._checkpointer.stage(loop.position, state)
            self._checkpointer.copy_staged(serving=False)

    def _make_room(self) -> None:
        """The chief will have to copy its state if another phase follows."""
        if self._station.spec.rank == 0 and not self._has_room:
            self._has_room = True
            self._checkpointer.reserve_memory(self._basis.replica.state())

    def _end(self, loop: TrainLoop, order: Begin) -> None:
        """Leave a lockstep phase, so that the next can go on from exactly here."""
        stays = self._next_is_same(loop, order)
        state = loop.leave(settle=not stays)
        tally, position = self._station.tally, loop.position
        snapshot = ""
        if not stays and self._station.spec.rank == 0:
            snapshot = self._checkpointer.stage(position, state)
            if self._is_written_first:
                self._checkpointer.write_staged()
                self._checkpointer.wait()
        own = msgspec.structs.replace(
            position,
            epoch_loss_sum=tally.epoch_loss_sum if position.epoch_samples else 0.0,
            epoch_correct=tally.epoch_correct if position.epoch_samples else 0,
        )
        self._station.control.send(PhaseOver(position=msgspec.json.encode(own), snapshot=snapshot))

    @property
    def _is_written_first(self) -> bool:
        """Whether the next phase may begin only with what is written down.

        Servers of their own read it, and where there is one worker nobody else holds a copy.
        """
        job, switch = self._station.job, self._switch
        apart = job.processes.servers > 0
        return switch.handover == "restart" or apart or job.workers == 1

    def _next_is_same(self, loop: TrainLoop, order: Begin) -> bool:
        """Whether the workers go on with the same strategy, each from its own replica."""
        if not isinstance(self._strategy, Allreduce) or self._switch.handover == "restart":
            return False
        phases, home = self._switch.resolved, loop.position.phase
        if loop.is_at(order.stop):
            return self._strategy_spec == phases[home + 1].strategy
        return self._council is not None and self._council.stays

    def _serve(self, order: Begin) -> Done | None:
        """A phase with servers; None: the run goes on with another."""
        phase = phase_station(self._station, order)
        tally, entry = self._station.tally, entry_of(self._station, order)
        tally.sent_before = tally.sent_bytes
        self._checkpointer.copy_staged(serving=True)

        def on_start() -> None:
            phase.control.send(Begun(pause_s=time.monotonic() - self._stopped))
            self._checkpointer.write_staged()

        with ExitStack() as stack:
            worker = ServedWorker(phase, self._basis, stack, entry=entry, slowdown=self._slowdown)
            # What is being written is the state that the last one is going to replace.
            worker.do(on_start=on_start, on_end=self._checkpointer.wait)
            self._stopped = worker.paused_at
            self._strategy = self._strategy_spec = None
            if not worker.handed_over:
                self._checkpointer.wait()
                return worker.finish()
            colocated = phase.serving.servers == "colocated"
            self._served = _Served(worker.layout, colocated=colocated)
            phase.control.send(PhaseOver(server=worker.finish().server))
        return None

    def _take_back(self, collective: Collective) -> None:
        """After a phase with servers: the optimiser's state, which they had."""
        if self._served is None:
            return
        served, self._served = self._served, None
        replica = self._basis.replica
        if served.colocated:
            handover.gather_slices(replica, served.layout, collective)
        else:
            store = self._station.store
            found = broadcast_from_chief(
                collective, lambda: ChiefData({}, read_optimizer(store, served.layout))
            )
            assert found is not None
            assert replica.optimizer is not None
            replica.optimizer.load_state(found.tensors)
        factor = handover.momentum_factor(self._station.job, asynchronous=False)
        if factor != 1.0:
            assert replica.optimizer is not None
            changed = handover.treat_momentum(
                replica.optimizer.state(), factor, self._station.job.optimizer
            )
            replica.optimizer.load_state(changed)

    def _join(self, group: int) -> Collective:
        """The group of all workers, which outlives phases as long as nobody is replaced."""
        if self._collective is not None and self._group == group:
            return self._collective
        job, rank = self._station.job, self._station.spec.rank
        if self._collective is not None:
            self._collective.close()
        self._group = group
        self._strategy = None
        if job.workers == 1:
            self._collective = SoloCollective()
        else:
            prefix, limit_s = f"workers/{group}/", job.deadlines.start_s
            self._collective = GlooCollective(
                BoardStore(self._station.control, prefix=prefix, limit_s=limit_s),
                rank=rank,
                size=job.workers,
                host=self._station.spec.address,
                deadline_s=job.deadlines.exchange_s,
            )
        return self._collective

    def _attach(self, phase: Station, collective: Collective, *, equal: bool) -> Strategy:
        """The phase's strategy; the one before goes on if nothing about it changes."""
        spec = phase.job.strategy
        if self._strategy is None or self._strategy_spec != spec:
            self._strategy, self._strategy_spec = build_strategy(spec), spec
            self._strategy.attach(self._basis.replica, collective, equal=equal)
        return self._strategy

    def _convene(self, strategy: Strategy, collective: Collective) -> Council | None:
        """Where the workers agree, if anything is to be decided on the way."""
        decides = any(phase.at == "auto" for phase in self._switch.resolved)
        if not decides and self._switch.straggler is None:
            return None
        return Council(
            self._station.control,
            collective,
            every=self._switch.auto.every,
            gauge=strategy.noise,
        )

    def _take_sums(self, position: Position) -> None:
        """In the middle of an epoch the chief goes on from the sums of all workers."""
        tally, chief = self._station.tally, self._station.spec.rank == 0
        tally.epoch_samples = position.epoch_samples if chief else 0
        tally.epoch_loss_sum = position.epoch_loss_sum if chief else 0.0
        tally.epoch_correct = position.epoch_correct if chief else 0
