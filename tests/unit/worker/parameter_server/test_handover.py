"""Everything that goes from one phase into the next, item by item, there and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.comm.solo import SoloCollective
from phalanx.consistency.policy import ConsistencyPolicy
from phalanx.consistency.rule import rule_for
from phalanx.consistency.shards import ShardLayout, plan_shards
from phalanx.data.pipeline import train_batches
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.engine.replica import Replica
from phalanx.engine.schedule import learning_rate
from phalanx.paramserver.shard import Shard
from phalanx.paramserver.update import SliceUpdater, StepSize
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.strategy.allreduce import Allreduce
from phalanx.wire.switch import CARRIED
from phalanx.worker.parameter_server import handover
from phalanx.worker.parameter_server.handover import PhaseEntry
from phalanx.worker.rate import Ramp, Rate, ramp_into
from phalanx.worker.switch.worker import momentum_factor
from support.ranks import run_ranks
from support.toy import toy_data, toy_job, toy_replica

OPTIMIZERS = {
    "sgd": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "adam": {"name": "adam", "lr": 0.01},
    "adadelta": {"name": "adadelta"},
}


def trained(job: JobSpec, folder: Path, *, steps: int = 3) -> Replica:
    """A replica that remembers something, equal on every rank."""
    dataset = toy_data(job, folder)
    replica = toy_replica(job, dataset, rank=0)
    strategy = Allreduce(AllreduceSpec())
    strategy.attach(replica, SoloCollective())
    with train_batches(
        dataset, spec=job.data, seed=1, epoch=0, global_batch=32, rank=0, num_workers=1,
        shares=None,
    ) as batches:  # fmt: skip
        for number, batch in zip(range(steps), batches, strict=False):
            strategy.step(batch, lr=0.05, step_index=number)
    return replica


def shard_of(job: JobSpec, replica: Replica, layout: ShardLayout, server: int) -> Shard:
    segments = layout.of_server(server)
    rule = rule_for(ParameterServerSpec())
    parameters = replica.parameters[slice(*layout.bounds(server))].clone()
    return Shard(
        segments,
        updater=SliceUpdater(OptimizerFactory(job.optimizer), parameters, segments),
        policy=ConsistencyPolicy(rule, range(2)),
        step_size=StepSize(lambda samples: 0.1, scaling="none", rule=rule),
    )


def layout_of(replica: Replica, num_servers: int) -> ShardLayout:
    return plan_shards(
        replica.parameters.numel(), num_servers=num_servers, min_shard_bytes=256, max_shards=8
    )


def test_the_list_names_every_item() -> None:
    assert CARRIED == (
        "parameters", "optimiser state", "batch-norm statistics", "schedule position",
        "sample position", "random state",
    )  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_parameters_and_optimiser_state_go_there_and_back_bit_by_bit(
    tmp_path: Path, name: str, num_servers: int
) -> None:
    job = toy_job(optimizer=OPTIMIZERS[name])
    dataset = toy_data(job, tmp_path)
    saved = trained(job, tmp_path).state()

    def body(group: Collective) -> None:
        replica = toy_replica(job, dataset, rank=group.rank)
        replica.load_state(saved)
        assert replica.optimizer is not None
        layout = layout_of(replica, num_servers)
        wanted = {key: tensor.clone() for key, tensor in replica.state().items()}
        assert any(tensor.abs().sum() > 0 for key, tensor in wanted.items() if "optimizer/" in key)
        hosts = group.rank < layout.num_servers
        if hosts:
            bounds = layout.bounds(group.rank)
            shard = shard_of(job, replica, layout, group.rank)
            handover.give_to_shard(replica, shard, bounds, 1.0)
            part = replica.optimizer.part(bounds)
            held = shard.updater.state()
            assert held.keys() == part.keys()
            assert all(torch.equal(held[key], part[key]) for key in part)
        # The way back must not lean on what the replica still holds.
        for tensor in replica.state().values():
            tensor.fill_(-7)
        if hosts:
            handover.take_from_shard(replica, shard, layout.bounds(group.rank))
        handover.gather_slices(replica, layout, group)
        for key, tensor in replica.state().items():
            assert key == "buffers" or torch.equal(tensor, wanted[key]), key

    run_ranks(3, body)


def test_counters_of_adam_are_carried(tmp_path: Path) -> None:
    job = toy_job(optimizer=OPTIMIZERS["adam"])
    replica = trained(job, tmp_path, steps=5)
    layout = layout_of(replica, 2)
    shard = shard_of(job, replica, layout, 1)
    handover.give_to_shard(replica, shard, layout.bounds(1), 1.0)
    counters = [one for one in shard.updater.state().values() if one.ndim == 0]
    assert [int(one) for one in counters] == [5]
    # A segment that has moved on since: the state as a whole is as far as its furthest part.
    shard.updater.move(0, torch.ones(shard.segments[0].size), 0.1)
    handover.take_from_shard(replica, shard, layout.bounds(1))
    assert replica.optimizer is not None
    back = [one for one in replica.optimizer.state().values() if one.ndim == 0]
    assert [int(one) for one in back] == [6]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("factor", [1.0, 0.0, 0.25])
def test_momentum_is_kept_forgotten_or_shrunk_and_nothing_else(
    tmp_path: Path, name: str, factor: float
) -> None:
    job = toy_job(optimizer=OPTIMIZERS[name])
    replica = trained(job, tmp_path)
    assert replica.optimizer is not None
    before = {key: tensor.clone() for key, tensor in replica.optimizer.state().items()}
    after = handover.scale_momentum(replica.optimizer.state(), factor, job.optimizer)
    for key, tensor in before.items():
        is_momentum = key in ("momentum_buffer", "exp_avg")
        assert torch.equal(after[key], tensor * factor if is_momentum else tensor), key
    # The worker's own state is what a roll-back goes back to.
    assert all(torch.equal(replica.optimizer.state()[key], before[key]) for key in before)


@pytest.mark.parametrize(
    ("policy", "to_async", "to_sync"),
    [("keep", 1.0, 1.0), ("zero", 0.0, 0.0), ("scale", 0.25, 1.0)],
)
def test_momentum_policies(policy: str, to_async: float, to_sync: float) -> None:
    job = toy_job(workers=4, strategy={"name": "switch", "momentum": policy})
    assert momentum_factor(job, asynchronous=True) == to_async
    assert momentum_factor(job, asynchronous=False) == to_sync


def test_statistics_are_taken_over_or_stay(tmp_path: Path) -> None:
    job = toy_job(model={"name": "resnet", "n": 1})
    replica = toy_replica(job, toy_data(job, tmp_path), rank=0)
    assert replica.buffers.numel() > 0
    own = replica.buffers.clone()
    handover.set_statistics(replica, b"")
    assert torch.equal(replica.buffers, own)
    given = torch.rand_like(own)
    handover.set_statistics(replica, given.numpy().tobytes())
    assert torch.equal(replica.buffers, given)


def test_the_schedule_goes_by_samples_on_servers_and_workers_alike() -> None:
    job = toy_job(
        epochs=10, workers=2, strategy="switch",
        schedule={"name": "milestones", "at": [0.5], "factor": 0.1, "warmup": 0.1},
    )  # fmt: skip
    rate = Rate(job, samples_per_epoch=400)
    for samples in (0, 100, 399, 400, 1999, 2000, 3999):
        assert rate(samples) == learning_rate(
            job.schedule, peak=job.optimizer.lr, samples_seen=samples, total_samples=4000,
            samples_per_epoch=400,
        )  # fmt: skip


def test_the_rate_climbs_after_a_switch_and_is_the_schedules_again_then() -> None:
    ramp = Ramp(begin=1000, length=400, start=0.1)
    factors = [ramp.factor(samples) for samples in (900, 1000, 1100, 1200, 1399, 1400, 9000)]
    assert factors == pytest.approx([0.1, 0.1, 0.325, 0.55, 0.99775, 1.0, 1.0])
    job = toy_job(epochs=10, optimizer=OPTIMIZERS["sgd"])
    rate = Rate(job, samples_per_epoch=400, ramp=ramp)
    assert (rate(1000), rate(1200), rate(1400)) == pytest.approx((0.01, 0.055, 0.1))


def test_only_a_phase_that_follows_another_has_a_climb() -> None:
    job = toy_job(workers=2, strategy={"name": "switch", "ramp_steps": 10, "ramp_from": 0.2})
    assert ramp_into(job, Position(samples=640)) is None
    # A process that comes in later climbs with the others, from where the phase began.
    later = Position(samples=800, phase_begin=640)
    assert ramp_into(job, later) == Ramp(begin=640, length=320, start=0.2)
    off = toy_job(workers=2, strategy={"name": "switch", "ramp_steps": 0})
    assert ramp_into(off, later) is None


def test_only_those_who_were_there_bring_the_state_along() -> None:
    position = Position(samples=640, updates=20, phase_begin=640)
    assert (PhaseEntry().carries, PhaseEntry().version) == (False, -1)
    assert (PhaseEntry(position=position).carries, PhaseEntry(position=position).version) == (
        True,
        20,
    )
    newcomer = PhaseEntry(position=position, restoring=True)
    assert (newcomer.carries, newcomer.version) == (False, -1)
