"""Train in one group after another of an elastic run, in the same process.

A group is broken off when a member is lost, and ends at a boundary when one is to join or leave.
Each time this worker reports what its state holds and waits for the next group, in which the unit
that was broken off is done again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.solo import SoloCollective
from phalanx.data.pipeline import Batch, Dataset
from phalanx.engine.precision import PrecisionChoice
from phalanx.engine.replica import Replica
from phalanx.errors import PeerError, TimeoutExpired
from phalanx.records.grouped import Grouped
from phalanx.records.position import Position
from phalanx.strategy.base import build_strategy
from phalanx.wire.deadline import Deadline
from phalanx.wire.elastic import NO_STATE, CaughtUp, FormGroup, Halted, JoinRequest, LeaveGroup
from phalanx.wire.messages import Done
from phalanx.wire.moments import reach
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief
from phalanx.worker.context import WorkerContext
from phalanx.worker.elastic.orders import GroupOrders
from phalanx.worker.elastic.trainer import ElasticTrainer, GroupTurned, context_in
from phalanx.worker.elastic.units import EpochSums, GroupNote, UnitCount
from phalanx.worker.groups import join_mesh
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.lockstep import conclude_job
from phalanx.worker.loop import TrainLoop
from phalanx.worker.network_record import record_network
from phalanx.worker.replica import build_replica, decide_precision
from phalanx.worker.run_state import UnsavedPoint
from phalanx.worker.torch_trainer import TrainSetup


def run_elastic_worker(context: WorkerContext) -> Done:
    """Train as a worker of a group that may lose and gain members."""
    spec, job = context.spec, context.job
    torch.set_num_threads(spec.threads)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    precision = decide_precision(job, dataset, SoloCollective())
    replica = build_replica(job, dataset, rank=spec.rank, precision=precision.name)
    record_network(context, replica.module, dataset)
    startup_s = context.record_start(precision.name, precision.reason)
    with GroupOrders(context.control.inbox) as orders:
        basis = ElasticBasis(dataset, replica, precision, startup_s)
        return ElasticWorker(context, basis, orders).run()


@dataclass(frozen=True)
class ElasticBasis:
    """Data, replica and precision of a worker, for all groups of a run."""

    dataset: Dataset
    replica: Replica
    precision: PrecisionChoice
    startup_s: float


class GivenUnits(msgspec.Struct, frozen=True):
    """What a member with the state of the run gives to one without, beside tensors."""

    position: Position
    commits: int
    sums: EpochSums
    unsaved_best: bool | None
    """Whether the checkpoint that is due is the best so far; None: none is due."""


class ElasticWorker:
    """Go from group to group until the job is done.

    Args:
        context: This process's place in the run.
        basis: Data and replica.
        orders: Of the controller.
    """

    def __init__(self, context: WorkerContext, basis: ElasticBasis, orders: GroupOrders) -> None:
        self._context = context
        self._basis = basis
        self._orders = orders
        self._units = UnitCount()
        self._slowdown = InjectedSlowdown(context.job.inject, rank=context.spec.rank)
        checkpoints = Checkpoints(context.store, context.job.checkpoint)
        self._checkpointer = AsyncCheckpointer(checkpoints, context.log)
        self._loop: TrainLoop[Batch] | None = None

    def run(self) -> Done:
        """Train until the job is done, or until this worker is told to leave."""
        metrics, limit_s = self._context.metrics, self._context.job.deadlines.progress_s
        self._context.control.send(JoinRequest())
        while True:
            metrics.activity = "waiting for a group"
            deadline = Deadline.after(limit_s, "the next group", setting="deadlines.progress_s")
            order = self._orders.next(deadline)
            if isinstance(order, LeaveGroup):
                return Done(times=metrics.times(sent_bytes=0))
            done = self._take_part(order)
            if done is not None:
                return done

    def _take_part(self, form: FormGroup) -> Done | None:
        """Train in one group; None: it was broken off, or has ended at a boundary."""
        group: Collective | None = None
        planned, suspects, reason = False, (), ""
        try:
            group = self._join(form)
            loop, setup = self._enter(form, group)
            loop.advance()
            done = conclude_job(
                self._context,
                setup,
                loop,
                precision=self._basis.precision.name,
                startup_s=self._basis.startup_s,
            )
            group.close()
            return done
        except GroupTurned:
            planned = True
        except PeerError as error:
            suspects, reason = tuple(error.facts.get("suspects", ())), str(error)
        self._leave(form, group)
        commits = NO_STATE if self._units.commits is None else self._units.commits
        self._context.control.send(Halted(form.generation, commits, planned, suspects, reason))
        return None

    def _join(self, form: FormGroup) -> Collective:
        members = [one.process for one in form.members]
        self._context.metrics.activity = "joining"
        if len(members) == 1:
            self._orders.watch(form.generation, None)
            return SoloCollective()
        check = partial(self._orders.check, form.generation)
        name, rank = f"workers/{form.generation}", members.index(self._context.spec.process)
        reach("group forming")
        try:
            group: MeshCollective = join_mesh(self._context, name, members, rank, check=check)
        except TimeoutExpired as error:
            raise PeerError(str(error), suspects=()) from error
        self._orders.watch(form.generation, group)
        return group

    def _enter(self, form: FormGroup, group: Collective) -> tuple[TrainLoop[Batch], TrainSetup]:
        """Bring this worker to the state of the group, and its loop into it."""
        basis, context = self._basis, context_in(self._context, form)
        strategy = build_strategy(context.job.strategy)
        strategy.attach(basis.replica, group, equal=form.base != NO_STATE)
        note = GroupNote(group, partial(self._orders.is_turning, form.generation))
        strategy.note = note
        setup = TrainSetup(basis.dataset, basis.replica, strategy, group)
        trainer = ElasticTrainer(context, setup, self._checkpointer, units=self._units, note=note)
        is_new = form.base == NO_STATE
        loop = self._begin(trainer) if is_new else self._go_on(trainer, form, group)
        reach("group formed")
        self._record(form, loop.position, group)
        return loop, setup

    def _begin(self, trainer: ElasticTrainer) -> TrainLoop[Batch]:
        """Begin the job, or go on from its newest checkpoint, all members together."""
        metrics = self._context.metrics
        self._loop = loop = TrainLoop(self._context, trainer, slowdown=self._slowdown)
        if self._context.spec.resume is not None:
            loop.restore()
            own = [metrics.epoch_loss_sum, metrics.epoch_correct, metrics.epoch_samples]
            self._units.sums = EpochSums(*trainer.total([*own, metrics.epoch_weight]))
        self._units.commits = 0
        return loop

    def _go_on(
        self, trainer: ElasticTrainer, form: FormGroup, group: Collective
    ) -> TrainLoop[Batch]:
        """Go on from the state of the members that have it."""
        given: GivenUnits | None = None
        if not all(one.has_state for one in form.members):
            given = self._share_state(group, has_state=form.members[group.rank].has_state)
        if self._loop is None:
            assert given is not None, "a member without a loop has no state"
            self._loop = TrainLoop(
                self._context, trainer, position=given.position, slowdown=self._slowdown
            )
        self._loop.regroup(trainer, given.position if given is not None else None)
        if given is not None:
            self._take_units(given, self._loop)
            self._context.control.send(CaughtUp(form.generation))
        self._units.sums.give_to(self._context.metrics, is_chief=group.rank == 0)
        return self._loop

    def _share_state(self, group: Collective, *, has_state: bool) -> GivenUnits | None:
        """Give the chief's state to the members without it; returns it where it was taken."""
        reach("state shared")
        found = broadcast_from_chief(group, self._own_state)
        assert found is not None
        if has_state:
            return None
        # Whole or not at all: a member that was interrupted keeps what it had.
        self._basis.replica.load_state(found.tensors)
        return msgspec.json.decode(found.metadata["units"], type=GivenUnits)

    def _own_state(self) -> ChiefData:
        assert self._loop is not None
        assert self._units.commits is not None
        unsaved = self._loop.unsaved
        units = GivenUnits(
            position=self._loop.position,
            commits=self._units.commits,
            sums=self._units.sums,
            unsaved_best=unsaved.is_best if unsaved is not None else None,
        )
        metadata = {"units": msgspec.json.encode(units).decode()}
        return ChiefData(metadata, self._basis.replica.state())

    def _take_units(self, given: GivenUnits, loop: TrainLoop[Batch]) -> None:
        self._units.commits = given.commits
        self._units.sums = given.sums
        best = given.unsaved_best
        loop.unsaved = UnsavedPoint(best) if best is not None else None

    def _leave(self, form: FormGroup, group: Collective | None) -> None:
        """Leave a group, with the state from before the unit that was broken off."""
        self._orders.watch(form.generation, None)
        if group is not None:
            self._context.metrics.sent_before += group.sent_bytes
            group.close()
        # It reads the state that is about to be restored.
        self._checkpointer.wait()
        self._units.undo(self._basis.replica)

    def _record(self, form: FormGroup, position: Position, group: Collective) -> None:
        if group.rank != 0:
            return
        self._context.log.record(
            Grouped(
                generation=form.generation,
                members=[one.process for one in form.members],
                waiting=[one.process for one in form.members if not one.has_state],
                commits=self._units.commits or 0,
                epoch=position.epoch,
                epoch_samples=position.epoch_samples,
                updates=position.updates,
            )
        )
        # Before its first step: the ledger must not be lost with the chief.
        self._context.log.flush()
