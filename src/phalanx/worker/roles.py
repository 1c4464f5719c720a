"""What a process does in its role; called by the bootstrap once channel and log are ready."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import torch

from phalanx.comm.base import Collective
from phalanx.comm.board import BoardStore
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.solo import SoloCollective
from phalanx.data.pipeline import open_dataset
from phalanx.records.events import Started
from phalanx.records.log import EventLog
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec
from phalanx.strategy.catalogue import build_strategy
from phalanx.wire.control import ControlClient
from phalanx.wire.messages import Done
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.loop import Reporting, Trainee, TrainLoop
from phalanx.worker.replica import build_replica, settle_precision
from phalanx.worker.tally import Tally

_LOOPBACK = "127.0.0.1"


def run_worker(
    spec: WorkerSpec, *, control: ControlClient, log: EventLog, tally: Tally, started: float
) -> Done:
    """Train to the end of the job as one of its workers."""
    torch.set_num_threads(spec.threads)
    tally.activity = "reading data"
    dataset = open_dataset(
        spec.job.data, data_root=Path(spec.data_root), cache_root=Path(spec.cache_root)
    )
    tally.activity = "joining"
    collective = _join(spec, control)
    try:
        precision = settle_precision(spec.job, dataset, collective)
        replica = build_replica(spec.job, dataset, rank=spec.rank, precision=precision.name)
        strategy = build_strategy(spec.job.strategy)
        strategy.attach(replica, collective)
        startup_s = time.monotonic() - started
        log.record(
            Started(
                rank=spec.rank,
                role=spec.role,
                pid=os.getpid(),
                host=socket.gethostname(),
                attempt=spec.attempt,
                threads=spec.threads,
                cpus=sorted(os.sched_getaffinity(0)),
                precision=precision.name,
                precision_reason=precision.reason,
                startup_s=startup_s,
            )
        )
        log.flush()
        loop = TrainLoop(
            spec.job,
            trainee=Trainee(dataset, replica, strategy, collective),
            checkpoints=Checkpoints(RunDir(Path(spec.run_dir)).checkpoints, spec.job.checkpoint),
            reporting=Reporting(log=log, control=control, tally=tally),
        )
        if spec.resume is not None:
            loop.restore()
        outcome = loop.run(precision=precision.name, startup_s=startup_s)
        return Done(times=loop.times(), outcome=outcome)
    finally:
        collective.close()


def _join(spec: WorkerSpec, control: ControlClient) -> Collective:
    if spec.job.workers == 1:
        return SoloCollective()
    deadlines = spec.job.deadlines
    store = BoardStore(control, prefix="workers/", limit_s=deadlines.start_s)
    return GlooCollective(
        store,
        rank=spec.rank,
        size=spec.job.workers,
        host=_LOOPBACK,
        deadline_s=deadlines.exchange_s,
    )
