"""Train as a member of one group of an elastic run, so that what is broken off can be redone."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from phalanx.data.pipeline import Batch
from phalanx.engine.replica import Replica
from phalanx.records.position import Position
from phalanx.strategy.base import StepFacts
from phalanx.wire.elastic import FormGroup
from phalanx.wire.moments import reach
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.chief_io import wait_for_chief
from phalanx.worker.context import WorkerContext
from phalanx.worker.elastic.units import GroupNote, UnitCount
from phalanx.worker.torch_trainer import TorchTrainer, TrainSetup


class GroupTurned(Exception):
    """Raised after the step at which all members agreed to end their group."""


class ElasticTrainer(TorchTrainer):
    """Train in one group.

    Args:
        context: This process's place in the run; its job says how batches are cut in this group.
        setup: Data, replica, strategy and group.
        checkpointer: Writes the chief's checkpoints.
        units: Of this worker, in all groups.
        note: Of the strategy.
    """

    def __init__(
        self,
        context: WorkerContext,
        setup: TrainSetup,
        checkpointer: AsyncCheckpointer,
        *,
        units: UnitCount,
        note: GroupNote,
    ) -> None:
        super().__init__(context, setup, checkpointer)
        assert isinstance(setup.replica, Replica)
        self._own_replica = setup.replica
        self._units = units
        self._note = note
        self._is_turning = False

    @property
    @override
    def is_elastic(self) -> bool:
        return True

    @override
    def unit_done(self) -> None:
        self._units.commit()
        reach("unit committed")
        if self._is_turning:
            raise GroupTurned

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        reach("step begun")
        self._units.keep(self._own_replica)
        facts = super().step(batch, lr=lr, step_index=step_index)
        self._is_turning = self._note.add_to(self._units.sums)
        reach("step applied")
        return facts

    @override
    def synchronize(self) -> None:
        self._units.keep(self._own_replica)
        reach("epoch ending")
        super().synchronize()

    @override
    def save(self, position: Position, *, best: bool = False) -> None:
        self._units.keep(self._own_replica)
        reach("checkpoint begun")
        super().save(position, best=best)
        # All know that it is written: should the chief be lost before, another one writes it.
        wait_for_chief(self._collective, self._checkpointer.wait)


def context_in(context: WorkerContext, form: FormGroup) -> WorkerContext:
    """Return a worker's context in one group: the same global batch, cut over its members."""
    job = context.job
    ranks = [int(one.process.rpartition("-")[2]) for one in form.members]
    given = job.batch.shares
    shares = [
        (1.0 if given is None or rank >= len(given) else given[rank]) * one.has_state
        for rank, one in zip(ranks, form.members, strict=True)
    ]
    equal = len(set(shares)) == 1
    batch = job.batch.model_copy(update={"shares": None if equal else tuple(shares)})
    data = job.data.model_copy(update={"shard": "sample"})
    changed = job.model_copy(update={"batch": batch, "data": data})
    return replace(context, spec=context.spec.model_copy(update={"job": changed}))
