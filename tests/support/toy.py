"""A small job on the embedded digits, taken step by step without processes."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Dataset, open_dataset, train_batches
from phalanx.engine.replica import Replica
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.strategy.base import build_strategy
from phalanx.worker.replica import build_replica

# Models are initialised from torch's global generator, which ranks in threads share.
_building = threading.Lock()

MLP: dict[str, object] = {"name": "mlp", "hidden": [32]}


def toy_job(**fields: object) -> JobSpec:
    """A job on 500 digits; any field may be given."""
    defaults: dict[str, object] = {
        "model": MLP,
        "data": {"name": "digits", "limit": 500, "prefetch": 0},
        "batch": {"global": 32},
    }
    return job_from_mapping(defaults | fields)


def toy_data(job: JobSpec, folder: Path) -> Dataset:
    """The job's data, decoded below `folder`."""
    return open_dataset(job.data, data_root=folder, cache_root=folder)


def toy_replica(job: JobSpec, dataset: Dataset, *, rank: int) -> Replica:
    """A rank's copy of the job's model."""
    with _building:
        return build_replica(job, dataset, rank=rank, precision="fp32")


def train_epochs(
    job: JobSpec,
    dataset: Dataset,
    collective: Collective,
    *,
    lr: float | None = None,
    replica: Replica | None = None,
) -> torch.Tensor:
    """Train all epochs of a job as one of its ranks; returns the settled parameters."""
    replica = replica or toy_replica(job, dataset, rank=collective.rank)
    strategy = build_strategy(job.strategy)
    strategy.attach(replica, collective)
    step = 0
    for epoch in range(job.epochs):
        with train_batches(
            dataset,
            spec=job.data,
            seed=job.seed,
            epoch=epoch,
            global_batch=job.global_batch,
            rank=collective.rank,
            num_workers=collective.size,
            shares=job.batch.shares,
        ) as batches:
            for batch in batches:
                strategy.step(batch, lr=lr or job.optimizer.lr, step_index=step)
                step += 1
        strategy.synchronize()
    return replica.parameters.clone()
