"""What a process of `backend: ddp` does: train as one worker of a group, as `peer.roles` asks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch

from phalanx.data.pipeline import Dataset
from phalanx.engine.precision import Precision
from phalanx.errors import SpecError
from phalanx.model.catalogue import build_model
from phalanx.peer.ddp.group import default_group
from phalanx.peer.ddp.learner import PlainLearner
from phalanx.peer.ddp.step import DdpSteps
from phalanx.wire.messages import Done
from phalanx.worker.context import WorkerContext
from phalanx.worker.lockstep import join_group, train_in_lockstep
from phalanx.worker.replica import agree_on_precision, first_batch
from phalanx.worker.torch_trainer import Trainee


def run_ddp_role(station: WorkerContext) -> Done:
    """Do this process's part of the run, to its end."""
    spec, job = station.spec, station.job
    if spec.role != "worker":
        raise SpecError(f"backend ddp has no role '{spec.role}'")
    torch.set_num_threads(spec.threads)
    station.metrics.activity = "reading data"
    dataset = station.open_data()
    station.metrics.activity = "joining"
    collective = join_group(station)
    try:
        with default_group(station) if job.workers > 1 else nullcontext():
            precision = agree_on_precision(
                job, collective, step_factory=lambda name: _trial_step(station, dataset, name)
            )
            learner = _build_learner(station, dataset, precision.name)
            steps = DdpSteps(learner, collective, job=job, input_shape=dataset.input_shape)
            trainee = Trainee(dataset, learner, steps, collective)
            return train_in_lockstep(station, trainee, precision)
    finally:
        collective.close()


def _build_learner(station: WorkerContext, dataset: Dataset, precision: Precision) -> PlainLearner:
    job = station.job
    module = build_model(
        job.model,
        input_shape=dataset.input_shape,
        num_classes=dataset.num_classes,
        seed=job.seed,
        modalities=dataset.modalities,
    )
    return PlainLearner(module, job=job, precision=precision)


def _trial_step(
    station: WorkerContext, dataset: Dataset, precision: Precision
) -> Callable[[], object]:
    learner = _build_learner(station, dataset, precision)
    learner.module.train()
    batch = first_batch(station.job, dataset, num_workers=station.job.workers)

    def step() -> None:
        learner.optimizer.zero_grad(set_to_none=True)
        learner.loss(learner.module, batch)[0].backward()  # type: ignore[no-untyped-call]

    return step
