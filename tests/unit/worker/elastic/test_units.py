"""Units of work of an elastic worker: counted when complete, undone when broken off."""

from __future__ import annotations

import torch
from torch import nn

from phalanx.comm.solo import SoloCollective
from phalanx.engine.replica import Replica
from phalanx.engine.result import StepResult
from phalanx.spec.loss import LossSpec
from phalanx.spec.optimize import SgdSpec
from phalanx.worker.elastic.units import EpochSums, GroupNote, UnitCount
from phalanx.worker.metrics import WorkerMetrics


def replica() -> Replica:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    return Replica(module, loss=LossSpec(), optimizer=SgdSpec())


def test_statistics_come_back_from_before_a_unit_that_was_broken_off() -> None:
    units, one = UnitCount(), replica()
    units.commits = 0
    before = {name: tensor.clone() for name, tensor in one.state().items()}
    units.keep(one)
    one.buffers.add_(1.0)
    units.keep(one)  # the unit goes on: what counts is from before it
    one.module[1].num_batches_tracked.add_(1)
    units.undo(one)
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.state().items())
    assert units.commits == 0


def test_a_unit_that_is_complete_is_not_undone() -> None:
    units, one = UnitCount(), replica()
    units.commits = 4
    units.keep(one)
    one.buffers.fill_(7.0)
    units.commit()
    units.undo(one)
    assert (one.buffers == 7.0).all()
    assert units.commits == 5


def test_a_note_adds_up_the_results_of_a_step_and_whether_to_turn() -> None:
    sums, turning = EpochSums(), False
    note = GroupNote(SoloCollective(), lambda: turning)
    note.start(StepResult(2.0, 3, 4, 0.0, 0.0)).wait()
    assert not note.add_to(sums)
    turning = True
    note.start(StepResult(1.0, 1, 4, 0.0, 0.0, weight=2.5)).wait()
    assert note.add_to(sums)
    assert sums == EpochSums(loss_sum=3.0, correct=4, samples=8, weight=6.5)


def test_the_chief_of_a_new_group_holds_the_sums_of_all() -> None:
    sums = EpochSums(3.0, 4, 8, 6.5)
    chief, other = WorkerMetrics(), WorkerMetrics(epoch_samples=5, epoch_loss_sum=1.0)
    sums.give_to(chief, is_chief=True)
    sums.give_to(other, is_chief=False)
    assert (chief.epoch_loss_sum, chief.epoch_correct, chief.epoch_samples) == (3.0, 4, 8)
    assert (other.epoch_loss_sum, other.epoch_samples, other.epoch_weight) == (0.0, 0, 0.0)
