"""Run a process of `backend: ddp`: train as one worker of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from phalanx.backends.ddp.learner import DdpModel
from phalanx.backends.ddp.step import DdpSteps
from phalanx.comm.rendezvous import RendezvousStore
from phalanx.data.pipeline import Dataset
from phalanx.engine.precision import Precision
from phalanx.errors import PeerError, SpecError
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext
from phalanx.worker.groups import GlooProof, join_group
from phalanx.worker.lockstep import train_in_lockstep
from phalanx.worker.network_record import record_network
from phalanx.worker.replica import agree_on_precision, build_network, first_batch
from phalanx.worker.torch_trainer import TrainSetup


def run_ddp_role(context: WorkerContext) -> Done:
    """Run this process's role to its end."""
    spec, job = context.spec, context.job
    if spec.role != "worker":
        raise SpecError(f"backend ddp has no role '{spec.role}'")
    torch.set_num_threads(spec.threads)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    context.metrics.activity = "joining"
    collective = join_group(context)
    try:
        with default_group(context) if job.workers > 1 else nullcontext():
            precision = agree_on_precision(
                job, collective, step_factory=lambda name: _trial_step(context, dataset, name)
            )
            learner = _build_learner(context, dataset, precision.name)
            record_network(context, learner.module, dataset)
            steps = DdpSteps(learner, collective, job=job, input_shape=dataset.input_shape)
            setup = TrainSetup(dataset, learner, steps, collective)
            return train_in_lockstep(context, setup, precision)
    finally:
        collective.close()


def _build_learner(context: WorkerContext, dataset: Dataset, precision: Precision) -> DdpModel:
    return DdpModel(build_network(context.job, dataset), job=context.job, precision=precision)


def _trial_step(
    context: WorkerContext, dataset: Dataset, precision: Precision
) -> Callable[[], object]:
    learner = _build_learner(context, dataset, precision)
    learner.module.train()
    batch = first_batch(context.job, dataset, num_workers=context.job.workers)

    def step() -> None:
        learner.optimizer.zero_grad(set_to_none=True)
        learner.loss(learner.module, batch)[0].backward()  # type: ignore[no-untyped-call]

    return step


_BACKEND = "gloo_at_address"


@contextmanager
def default_group(context: WorkerContext) -> Iterator[None]:
    """Join torch's default group inside the block."""
    job = context.job
    members = [f"worker-{rank}" for rank in range(job.workers)]
    proof = GlooProof(context, "ddp", members, context.spec.rank)
    made: list[ProcessGroupGloo] = []

    def make(
        store: dist.Store,  # type: ignore[name-defined]  # no stubs in torch
        rank: int,
        size: int,
        timeout: timedelta,
    ) -> ProcessGroupGloo:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=context.spec.address)]
        options._timeout = timeout
        made.append(ProcessGroupGloo(store, rank, size, options))
        return made[0]

    dist.Backend.register_backend(_BACKEND, make, devices=["cpu"])
    store = RendezvousStore(context.control, prefix="ddp/", limit_s=job.deadlines.start_s)
    try:
        dist.init_process_group(
            _BACKEND,
            store=store,
            rank=context.spec.rank,
            world_size=job.workers,
            timeout=timedelta(seconds=job.deadlines.exchange_s),
        )
    except RuntimeError as error:
        raise PeerError(f"the group of {job.workers} workers did not form: {error}") from error
    try:
        if not proof.succeeds(made[0]):
            raise PeerError(
                "somebody who is no worker of this run has entered torch's group; start it again "
                "on a network that strangers do not reach, or set 'backend: native'"
            )
        yield
    finally:
        dist.destroy_process_group()
