"""Run the phases of a switched run in the same process, without a restart.

Data, model and optimiser are made once. Between two phases a process waits for `BeginPhase`, which
names the next strategy and its first position; `parameter_server.handover` lists the state that is
transferred.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.comm.solo import SoloCollective
from phalanx.consistency.shards import ShardLayout
from phalanx.data.pipeline import Batch
from phalanx.errors import StoreError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import SwitchSpec, phase_job, strategy_of
from phalanx.strategy.allreduce import Allreduce
from phalanx.strategy.base import Strategy, build_strategy
from phalanx.wire.deadline import Deadline
from phalanx.wire.messages import Done, PhaseOver
from phalanx.wire.moments import reach
from phalanx.wire.parameter_server import Finish
from phalanx.wire.switch import BeginPhase, PhaseBegun, PhaseIdle
from phalanx.worker.checkpoint import NEWEST, Checkpoints, unpinned
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief
from phalanx.worker.context import WorkerContext
from phalanx.worker.groups import join_group
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.loop import TrainLoop
from phalanx.worker.network_record import record_network
from phalanx.worker.parameter_server import handover
from phalanx.worker.parameter_server.evaluator import run_evaluator
from phalanx.worker.parameter_server.handover import PhaseEntry
from phalanx.worker.parameter_server.server import run_server
from phalanx.worker.parameter_server.server_file import read_optimizer
from phalanx.worker.parameter_server.worker import ParameterServerWorker
from phalanx.worker.rate import ramp_into
from phalanx.worker.replica import TrainResources, build_replica, decide_precision
from phalanx.worker.switch.window_stats import WindowStats
from phalanx.worker.torch_trainer import TorchTrainer, TrainSetup

# How long a newcomer waits for the state that the chief is still writing.
_SNAPSHOT_S = 10.0


def run_switching_worker(context: WorkerContext) -> Done:
    """Train in one phase after another."""
    torch.set_num_threads(context.spec.threads)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    precision = decide_precision(context.job, dataset, SoloCollective())
    replica = build_replica(context.job, dataset, rank=context.spec.rank, precision=precision.name)
    record_network(context, replica.module, dataset)
    startup_s = context.record_start(precision.name, precision.reason)
    with ExitStack() as stack:
        basis = TrainResources.of_job(context.job, dataset, precision.name, replica)
        return SwitchingWorker(context, basis, stack, startup_s=startup_s).run()


def run_switching_helper(context: WorkerContext) -> Done:
    """Run a server or the evaluator in the phases that have them."""

    def run_phase(phase: WorkerContext, start: PhaseEntry) -> Done:
        is_server = context.spec.role == "server"
        return run_server(phase, start) if is_server else run_evaluator(phase)

    return help_in_phases(context, context.open_data().train.num_samples, run_phase)


def help_in_phases(
    context: WorkerContext,
    num_samples: int,
    run_phase: Callable[[WorkerContext, PhaseEntry], Done],
) -> Done:
    """Take part in the phases that have servers, until the job is done.

    Args:
        context: Of this process.
        num_samples: Of an epoch.
        run_phase: Runs one phase to its end.
    """
    control = context.control
    control.send(PhaseIdle(num_samples=num_samples))
    while True:
        context.metrics.activity = "waiting for a phase"
        # Waits until the next phase or the end of this process: the lifelines end it.
        order = control.inbox.get()
        if isinstance(order, Finish):
            return Done()
        if not isinstance(order, BeginPhase):
            continue  # of the previous phase, and too late
        done = run_phase(phase_context(context, order), start_of(context, order))
        control.send(PhaseOver(server=done.server))


def phase_context(context: WorkerContext, order: BeginPhase) -> WorkerContext:
    """Return a process's context in one phase."""
    job = phase_job(context.job, order.phase, order.shares)
    resume = context.spec.resume if order.checkpoint == NEWEST else None
    spec = context.spec.model_copy(update={"job": job, "resume": resume})
    return replace(context, spec=spec)


def start_of(context: WorkerContext, order: BeginPhase) -> PhaseEntry:
    """Return the state with which a process begins a phase with servers."""
    position = msgspec.json.decode(order.position, type=Position)
    strategy = strategy_of(context.job, order.phase)
    assert isinstance(strategy, ParameterServerSpec)
    ramp = None if strategy.synchronous else ramp_into(context.job, position)
    if order.checkpoint == NEWEST:
        return PhaseEntry(restoring=order.newcomer, checkpoint=NEWEST, ramp=ramp)
    checkpoint = order.checkpoint or None
    if checkpoint is not None and not _appears(context, checkpoint):
        if not order.newcomer:
            raise StoreError(f"the state that a phase begins with was never written: {checkpoint}")
        # Its writer is gone. Others hold the parameters; the momentum is lost.
        message = f"{checkpoint} was never written: going on without the momentum in it"
        context.log.record(events.Warned(message=message))
        checkpoint = None
    return PhaseEntry(
        position=position if position.phase_begin > 0 else None,
        restoring=order.newcomer,
        checkpoint=checkpoint,
        ramp=ramp,
        momentum=momentum_factor(context.job, asynchronous=not strategy.synchronous),
    )


def momentum_factor(job: JobSpec, *, asynchronous: bool) -> float:
    """Return the factor of the optimiser's momentum at a switch."""
    switch = job.strategy
    assert isinstance(switch, SwitchSpec)
    if switch.momentum == "zero":
        return 0.0
    return 1.0 / job.workers if switch.momentum == "scale" and asynchronous else 1.0


def _appears(context: WorkerContext, name: str) -> bool:
    """Return whether a checkpoint that may still be uploaded arrives in time."""
    checkpoints = Checkpoints(context.store, context.job.checkpoint)
    deadline = Deadline.after(_SNAPSHOT_S, f"{name} to be written")
    while not checkpoints.has(name) and not deadline.expired:
        threading.Event().wait(0.25 if checkpoints.is_remote else 0.05)
        if checkpoints.is_coming(unpinned(name)):
            # The sender has a deadline, too.
            deadline = Deadline.after(_SNAPSHOT_S, f"{name} to be written")
    return checkpoints.has(name)


@dataclass(frozen=True)
class _ServedPhase:
    """The previous phase had servers, which still hold the optimiser's state."""

    layout: ShardLayout
    colocated: bool


class _Group:
    """The group of all workers and the strategy that uses it, kept as long as neither changes.

    A group outlives phases until a worker is replaced; a strategy needs the group it was attached
    with, and goes when the group does.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._number = -1
        self._spec: StrategySpec | None = None
        self.collective: Collective | None = None
        self.strategy: Strategy | None = None

    def join(self, number: int) -> Collective:
        """Return the group of this number; form it if it is not the present one."""
        if self.collective is None or self._number != number:
            if self.collective is not None:
                self.collective.close()
            self._number = number
            self.detach()
            self.collective = join_group(self._context, f"workers/{number}")
        return self.collective

    def attach(self, spec: StrategySpec, make: Callable[[Collective], Strategy]) -> Strategy:
        """Return the phase's strategy; keep the attached one if nothing about it changes.

        Args:
            spec: Of the phase.
            make: Makes it, and attaches it to what it trains.
        """
        if self.strategy is None or self._spec != spec:
            assert self.collective is not None, "a strategy needs a group"
            self.strategy, self._spec = make(self.collective), spec
        return self.strategy

    def detach(self) -> None:
        """Drop the strategy: other processes change the replica from now on."""
        self.strategy = self._spec = None

    def is_same(self, spec: object) -> bool:
        """Return whether the attached strategy is that of a spec."""
        return self._spec == spec


class SwitchingWorker:
    """Take one worker through the phases of a job.

    Args:
        context: Of this process.
        basis: Data and model, for all phases.
        stack: Closes what it opens.
        startup_s: How long it took until here.
    """

    def __init__(
        self, context: WorkerContext, basis: TrainResources, stack: ExitStack, *, startup_s: float
    ) -> None:
        assert isinstance(context.job.strategy, SwitchSpec)
        self._context = context
        self._switch = context.job.strategy
        self._basis = basis
        self._startup_s = startup_s
        self._group = _Group(context)
        self._window: WindowStats | None = None
        self._served: _ServedPhase | None = None
        self._stopped_s = time.monotonic()
        self._slowdown = InjectedSlowdown(context.job.inject, rank=context.spec.rank)
        self._has_room = False
        checkpoints = Checkpoints(context.store, context.job.checkpoint)
        self._checkpointer = AsyncCheckpointer(checkpoints, context.log)
        stack.callback(self._checkpointer.wait)

    def run(self) -> Done:
        """Run phases until the job is done."""
        control = self._context.control
        control.send(PhaseIdle(num_samples=self._basis.dataset.train.num_samples))
        while True:
            self._context.metrics.activity = "waiting for a phase"
            # Waits until the next phase or the end of this process: the lifelines end it.
            order = control.inbox.get()
            if isinstance(order, Finish):
                # Other processes go on with the run.
                return Done(times=self._context.metrics.times(sent_bytes=0))
            if not isinstance(order, BeginPhase):
                continue  # of the previous phase, and too late
            serving = strategy_of(self._context.job, order.phase).updates_on_servers
            done = self._serve(order) if serving else self._train(order)
            if done is not None:
                return done

    def _train(self, order: BeginPhase) -> Done | None:
        """Run a synchronous phase; None: another phase follows."""
        if order.phase > 0:
            reach("entering lockstep")
        phase, replica = phase_context(self._context, order), self._basis.replica
        collective = self._group.join(order.group)
        metrics = self._context.metrics
        position = msgspec.json.decode(order.position, type=Position)
        handover.set_statistics(replica, order.statistics)
        # After servers all workers hold the same parameters: no broadcast is needed.
        equal = self._served is not None
        self._take_back(collective)
        self._checkpointer.copy_staged(serving=False)
        # Attaching may change the replica, so the staged state is copied before.
        spec = phase.job.strategy
        strategy = self._group.attach(spec, lambda group: self._attach(spec, group, equal=equal))
        self._window = self._make_window(spec, strategy, collective)
        metrics.sent_before = metrics.sent_bytes - collective.sent_bytes
        self._take_sums(position)
        setup = TrainSetup(self._basis.dataset, replica, strategy, collective)
        trainer = self._make_trainer(phase, setup)
        loop = TrainLoop(
            phase, trainer, position=position, window=self._window, slowdown=self._slowdown
        )
        if order.checkpoint:
            self._restore(loop, order.checkpoint, position)
        if order.save:
            self._keep(trainer, loop.position)
        phase.control.send(PhaseBegun(pause_s=time.monotonic() - self._stopped_s))
        self._checkpointer.write_staged()
        self._make_room()
        loop.advance(order.stop)
        if loop.is_over:
            self._checkpointer.wait()
            outcome = loop.conclude(precision=self._basis.precision, startup_s=self._startup_s)
            return Done(times=loop.times(), outcome=outcome)
        self._stopped_s = time.monotonic()
        self._end(loop, trainer, order)
        return None

    def _attach(self, spec: StrategySpec, collective: Collective, *, equal: bool) -> Strategy:
        """Return a phase's strategy, attached; `equal`: all workers hold the same parameters."""
        strategy = build_strategy(spec)
        strategy.attach(self._basis.replica, collective, equal=equal)
        return strategy

    def _make_trainer(self, phase: WorkerContext, setup: TrainSetup) -> TorchTrainer:
        return TorchTrainer(phase, setup, self._checkpointer)

    def _make_worker(
        self, phase: WorkerContext, stack: ExitStack, start: PhaseEntry
    ) -> ParameterServerWorker:
        return ParameterServerWorker(
            phase, self._basis, stack, start=start, slowdown=self._slowdown
        )

    def _restore(self, loop: TrainLoop[Batch], checkpoint: str, position: Position) -> None:
        loop.restore(checkpoint)
        if checkpoint != NEWEST and self._context.spec.rank == 0:
            self._checkpointer.checkpoints.go_back_to(checkpoint)
        loop.position.phase = position.phase
        loop.position.phase_begin = position.phase_begin

    def _keep(self, trainer: TorchTrainer, position: Position) -> None:
        state = trainer.state()
        if self._context.spec.rank == 0:
            self._checkpointer.stage(position, state)
            self._checkpointer.copy_staged(serving=False)

    def _make_room(self) -> None:
        """Reserve memory for the chief's copy of its state, if another phase follows."""
        if self._context.spec.rank == 0 and not self._has_room:
            self._has_room = True
            self._checkpointer.reserve_memory(self._basis.replica.state())

    def _end(self, loop: TrainLoop[Batch], trainer: TorchTrainer, order: BeginPhase) -> None:
        """Leave a synchronous phase, so that the next can continue from exactly here."""
        reach("leaving lockstep")
        stays = self._next_is_same(loop, order)
        loop.leave(synchronize=not stays)
        state = trainer.state()
        metrics, position = self._context.metrics, loop.position
        snapshot = ""
        if not stays and self._context.spec.rank == 0:
            snapshot = self._checkpointer.stage(position, state)
            # On disk before PhaseOver, which commits the switch.
            if self._is_written_first:
                self._checkpointer.write_staged()
                self._checkpointer.wait()
        own = msgspec.structs.replace(
            position,
            epoch_loss_sum=metrics.epoch_loss_sum if position.epoch_samples else 0.0,
            epoch_correct=metrics.epoch_correct if position.epoch_samples else 0,
            epoch_weight=metrics.epoch_weight if position.epoch_samples else None,
        )
        self._context.control.send(PhaseOver(position=msgspec.json.encode(own), snapshot=snapshot))

    @property
    def _is_written_first(self) -> bool:
        """Return whether the next phase may begin only after the checkpoint is written.

        Server processes read it; with one worker there is no other copy.
        """
        job, switch = self._context.job, self._switch
        apart = job.processes.servers > 0
        return switch.handover == "restart" or apart or job.workers == 1

    def _next_is_same(self, loop: TrainLoop[Batch], order: BeginPhase) -> bool:
        """Return whether the next phase has the same strategy, each worker keeping its replica."""
        if not isinstance(self._group.strategy, Allreduce) or self._switch.handover == "restart":
            return False
        phases, home = self._switch.resolved, loop.position.phase
        if loop.is_at(order.stop):
            return self._group.is_same(phases[home + 1].strategy)
        return self._window is not None and self._window.same_strategy

    def _serve(self, order: BeginPhase) -> Done | None:
        """Run a phase with servers; None: another phase follows."""
        reach("entering servers")
        phase = phase_context(self._context, order)
        metrics, start = self._context.metrics, start_of(self._context, order)
        metrics.sent_before = metrics.sent_bytes
        self._checkpointer.copy_staged(serving=True)

        def on_start() -> None:
            phase.control.send(PhaseBegun(pause_s=time.monotonic() - self._stopped_s))
            self._checkpointer.write_staged()

        with ExitStack() as stack:
            worker = self._make_worker(phase, stack, start)
            # The checkpoint under way reads memory that the servers' last state is going to
            # replace.
            worker.run(on_start=on_start, on_end=self._checkpointer.wait)
            self._stopped_s = worker.paused_s
            self._group.detach()
            if not worker.has_handed_over:
                self._checkpointer.wait()
                return worker.finish()
            colocated = phase.serving.servers == "colocated"
            self._served = _ServedPhase(worker.layout, colocated=colocated)
            phase.control.send(PhaseOver(server=worker.finish().server))
        return None

    def _take_back(self, collective: Collective) -> None:
        """Restore the optimiser's state from the servers of the previous phase."""
        if self._served is None:
            return
        reach("putting together")
        served, self._served = self._served, None
        replica = self._basis.replica
        if served.colocated:
            handover.gather_slices(replica, served.layout, collective)
        else:
            store = self._context.store
            found = broadcast_from_chief(
                collective, lambda: ChiefData({}, read_optimizer(store, served.layout))
            )
            assert found is not None
            assert replica.optimizer is not None
            replica.optimizer.load_state(found.tensors)
        factor = momentum_factor(self._context.job, asynchronous=False)
        if factor != 1.0:
            assert replica.optimizer is not None
            changed = handover.scale_momentum(
                replica.optimizer.state(), factor, replica.optimizer.spec
            )
            replica.optimizer.load_state(changed)

    def _make_window(
        self, spec: StrategySpec, strategy: Strategy, collective: Collective
    ) -> WindowStats | None:
        if not self._switch.ends_early(spec):
            return None
        return WindowStats(
            self._context.control,
            collective,
            every=self._switch.auto.every,
            # A phase that only a user ends early measures no gradients.
            gauge=strategy.noise if self._switch.decides else None,
        )

    def _take_sums(self, position: Position) -> None:
        """Continue the chief from the sums of all workers in the middle of an epoch."""
        metrics, chief = self._context.metrics, self._context.spec.rank == 0
        metrics.epoch_samples = position.epoch_samples if chief else 0
        metrics.epoch_loss_sum = position.epoch_loss_sum if chief else 0.0
        metrics.epoch_correct = position.epoch_correct if chief else 0
        metrics.epoch_weight = position.epoch_divisor if chief else 0.0
