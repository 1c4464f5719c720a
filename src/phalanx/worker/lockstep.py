"""Train as one worker of a synchronous group: the same loop for every strategy with a step."""

from __future__ import annotations

import msgspec
import torch

from phalanx.comm.base import Collective
from phalanx.comm.board import BoardStore
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.solo import SoloCollective
from phalanx.engine.precision import PrecisionChoice
from phalanx.strategy.base import build_strategy
from phalanx.wire.messages import Done
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.evaluate import Share
from phalanx.worker.infer import measure_inference
from phalanx.worker.loop import Reporting, Trainee, TrainLoop
from phalanx.worker.replica import build_replica, settle_precision
from phalanx.worker.station import Station


def run_lockstep_worker(station: Station) -> Done:
    """Train as one of a group of workers that step together."""
    spec, job = station.spec, station.job
    torch.set_num_threads(spec.threads)
    station.tally.activity = "reading data"
    dataset = station.open_data()
    station.tally.activity = "joining"
    collective = join_workers(station)
    try:
        precision = settle_precision(job, dataset, collective)
        replica = build_replica(job, dataset, rank=spec.rank, precision=precision.name)
        strategy = build_strategy(job.strategy)
        strategy.attach(replica, collective)
        trainee = Trainee(dataset, replica, strategy, collective)
        return train_in_lockstep(station, trainee, precision)
    finally:
        collective.close()


def train_in_lockstep(station: Station, trainee: Trainee, precision: PrecisionChoice) -> Done:
    """Run the loop from the beginning, or from a checkpoint, to the end of the job."""
    station.profiler.prepare()
    startup_s = station.record_start(precision.name, precision.reason)
    checkpoints = Checkpoints(station.store, station.job.checkpoint)
    loop = TrainLoop(
        station.job,
        trainee=trainee,
        checkpointer=AsyncCheckpointer(checkpoints, station.log),
        reporting=Reporting(
            log=station.log,
            control=station.control,
            tally=station.tally,
            profiler=station.profiler,
            sampler=station.sampler,
            run=station.run,
        ),
    )
    if station.spec.resume is not None:
        loop.restore()
    loop.advance()
    outcome = loop.conclude(precision=precision.name, startup_s=startup_s)
    if station.job.infer is not None:
        station.tally.activity = "answering requests"
        inference = measure_inference(
            trainee.replica,
            trainee.dataset,
            trainee.collective,
            spec=station.job.infer,
            share=trainee.share or Share(trainee.collective.rank, trainee.collective.size),
        )
        outcome = msgspec.structs.replace(outcome, inference=inference)
    return Done(times=loop.times(), outcome=outcome)


def join_workers(station: Station) -> Collective:
    """Form the group of all workers."""
    job = station.job
    if job.workers == 1:
        return SoloCollective()
    store = BoardStore(station.control, prefix="workers/", limit_s=job.deadlines.start_s)
    return GlooCollective(
        store,
        rank=station.spec.rank,
        size=job.workers,
        host=station.spec.address,
        deadline_s=job.deadlines.exchange_s,
    )
