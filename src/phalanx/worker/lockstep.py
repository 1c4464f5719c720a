"""Synchronous training: join the group of workers and run the loop to the end of the job.

`train_in_lockstep` is used by `worker.split` and `backends.ddp` as well.
"""

from __future__ import annotations

import msgspec
import torch

from phalanx.data.pipeline import Batch
from phalanx.engine.precision import PrecisionChoice
from phalanx.strategy.base import build_strategy
from phalanx.wire.messages import Done
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.context import WorkerContext
from phalanx.worker.evaluate import EvaluationShare
from phalanx.worker.groups import join_group
from phalanx.worker.infer import measure_inference
from phalanx.worker.loop import TrainLoop
from phalanx.worker.network_record import record_network
from phalanx.worker.replica import build_replica, decide_precision
from phalanx.worker.torch_trainer import TorchTrainer, TrainSetup


def run_lockstep_worker(context: WorkerContext) -> Done:
    """Train as one of a group of workers that step together."""
    spec, job = context.spec, context.job
    torch.set_num_threads(spec.threads)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    context.metrics.activity = "joining"
    collective = join_group(context)
    try:
        precision = decide_precision(job, dataset, collective)
        replica = build_replica(job, dataset, rank=spec.rank, precision=precision.name)
        record_network(context, replica.module, dataset)
        strategy = build_strategy(job.strategy)
        strategy.attach(replica, collective)
        setup = TrainSetup(dataset, replica, strategy, collective)
        return train_in_lockstep(context, setup, precision)
    finally:
        collective.close()


def train_in_lockstep(
    context: WorkerContext, setup: TrainSetup, precision: PrecisionChoice
) -> Done:
    """Run the loop from the beginning, or from a checkpoint, to the end of the job."""
    context.profiler.prepare()
    startup_s = context.record_start(precision.name, precision.reason)
    checkpoints = Checkpoints(context.store, context.job.checkpoint)
    checkpointer = AsyncCheckpointer(checkpoints, context.log)
    loop = TrainLoop(context, TorchTrainer(context, setup, checkpointer))
    if context.spec.resume is not None:
        loop.restore()
    loop.advance()
    return conclude_job(context, setup, loop, precision=precision.name, startup_s=startup_s)


def conclude_job(
    context: WorkerContext,
    setup: TrainSetup,
    loop: TrainLoop[Batch],
    *,
    precision: str,
    startup_s: float,
) -> Done:
    """Measure the trained network, all workers together; return what this worker reports."""
    outcome = loop.conclude(precision=precision, startup_s=startup_s)
    if context.job.infer is not None:
        context.metrics.activity = "answering requests"
        inference = measure_inference(
            setup.replica,
            setup.dataset,
            setup.collective,
            spec=context.job.infer,
            share=setup.share or EvaluationShare(setup.collective.rank, setup.collective.size),
        )
        outcome = msgspec.structs.replace(outcome, inference=inference)
    return Done(times=loop.times(), outcome=outcome)
