"""Build this worker's replica: the job's model on the data's shapes, in the chosen precision."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from phalanx.comm.base import Collective
from phalanx.consistency.shards import ShardLayout
from phalanx.data.pipeline import Batch, Dataset, train_batches
from phalanx.engine.optimizer_factory import OptimizerFactory, factory_for
from phalanx.engine.precision import Precision, PrecisionChoice, choose_precision
from phalanx.engine.replica import Replica
from phalanx.engine.trained import WholeReplica
from phalanx.model.catalogue import build_model
from phalanx.spec.job import JobSpec
from phalanx.worker.context import WorkerContext

_log = logging.getLogger(__name__)

_FORMATS: tuple[Precision, ...] = ("fp32", "bf16")


@dataclass(frozen=True)
class TrainResources:
    """Data, replica and precision of a worker, shared by all phases of a run."""

    dataset: Dataset
    precision: str
    """Format of forward and backward pass, for the records."""
    replica: WholeReplica
    factory: OptimizerFactory
    """Makes the optimisers of slices on servers."""

    @classmethod
    def of_job(
        cls, job: JobSpec, dataset: Dataset, precision: str, replica: Replica
    ) -> TrainResources:
        """Join the parts of a job."""
        factory = factory_for(job.optimizer, replica.module, replica.layout)
        return cls(dataset, precision, replica, factory)


def decide_precision(job: JobSpec, dataset: Dataset, collective: Collective) -> PrecisionChoice:
    """Return the precision of all workers; under `auto` the chief measures it."""

    def step_factory(precision: Precision) -> Callable[[], object]:
        replica = build_replica(job, dataset, rank=0, precision=precision)
        batch = first_batch(job, dataset, num_workers=collective.size)
        return lambda: replica.forward_backward(batch, step=0)

    return agree_on_precision(job, collective, step_factory=step_factory)


def first_batch(job: JobSpec, dataset: Dataset, *, num_workers: int) -> Batch:
    """Return the chief's first batch, to measure a step with."""
    with train_batches(
        dataset,
        spec=job.data,
        seed=job.seed,
        epoch=0,
        global_batch=job.global_batch,
        rank=0,
        num_workers=num_workers,
        shares=job.batch.shares,
    ) as batches:
        return next(iter(batches)).copy()


def agree_on_precision(
    job: JobSpec,
    collective: Collective,
    *,
    step_factory: Callable[[Precision], Callable[[], object]],
) -> PrecisionChoice:
    """Let the chief choose the precision of all workers.

    Args:
        job: Requests the precision.
        collective: The workers.
        step_factory: Makes a step to measure, in a given format.
    """
    # The others take the chief's choice, so they need not measure.
    requested = job.precision if collective.rank == 0 or job.precision != "auto" else "fp32"
    choice = choose_precision(requested, step_factory=step_factory)
    if job.precision != "auto":
        return choice
    chosen = torch.tensor([_FORMATS.index(choice.name)])
    collective.broadcast(chosen)
    if collective.rank == 0:
        return choice
    return PrecisionChoice(_FORMATS[int(chosen.item())], "the chief's choice")


def build_network(job: JobSpec, dataset: Dataset) -> nn.Module:
    """Build the job's network, with weights equal on every worker."""
    return build_model(
        job.model,
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        seed=job.seed,
        modalities=dataset.modalities,
        fields=dataset.fields,
    )


def build_replica(
    job: JobSpec, dataset: Dataset, *, rank: int, precision: Precision, optimizer: bool = True
) -> Replica:
    """Build a worker's replica of the job's model, equal on all workers of the run.

    Args:
        job: Gives the model, loss and update rule.
        dataset: Gives the shapes.
        rank: Decides dropout, with the job's seed and the step.
        precision: Format of the forward and backward pass.
        optimizer: False if the parameters are moved elsewhere.
    """
    return Replica(
        build_network(job, dataset),
        loss=job.loss,
        optimizer=job.optimizer if optimizer else None,
        precision=precision,
        seed=job.seed,
        rank=rank,
        bucket_bytes=job.strategy.bucket_size,
        passes=job.batch.accumulate,
    )


def shard_layout(
    context: WorkerContext, replica: WholeReplica, factory: OptimizerFactory
) -> ShardLayout:
    """Return the slices of a model over servers, where its optimiser allows cuts."""
    layout = context.layout(replica.parameters.numel(), factory.cut_at, factory.borders)
    num_servers = context.serving.num_servers(context.job.workers)
    if factory.cut_at == () and num_servers > 1:
        _log.warning(
            "optimizer '%s' needs all parameters in one place, so one of %d servers is used: %s",
            factory.name,
            num_servers,
            factory.why_not_cut,
        )
    return layout
