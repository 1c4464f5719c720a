"""Run the processes that TensorFlow's chief dispatches to: workers and parameter servers.

TensorFlow's server does the work in its threads; this process waits for the end and keeps its
records. Its working directory differs per process: functions sent by the chief find there, under
names equal on all workers, the rank and the decoded data.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import tensorflow as tf

from phalanx.backends.tensorflow.environment import publish_cluster
from phalanx.backends.tensorflow.messages import (
    PeerMessage,
    StepRow,
    StepsDone,
    TrainingMark,
    decode_message,
)
from phalanx.backends.tensorflow.rendezvous import exchange_addresses
from phalanx.data.pipeline import Dataset
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.strategy.base import StepFacts
from phalanx.wire.messages import Done
from phalanx.wire.parameter_server import Finish
from phalanx.wire.relay import FromProcess
from phalanx.wire.switch import BeginPhase
from phalanx.worker.context import WorkerContext
from phalanx.worker.metrics import record_step

RANK_FILE = "rank"
DATA_LINK = "data"


def cluster_names(context: WorkerContext) -> list[str]:
    """Return the processes of a parameter server's cluster."""
    strategy = context.job.strategy
    assert isinstance(strategy, ParameterServerSpec)
    assert isinstance(strategy.servers, int)
    servers = [f"server-{rank}" for rank in range(strategy.servers)]
    return ["chief-0", *servers, *(f"worker-{rank}" for rank in range(context.job.workers))]


def run_cluster_worker(context: WorkerContext, dataset: Dataset, begin: BeginPhase) -> Done:
    """Serve TensorFlow's chief until the phase is over."""
    context.metrics.activity = "joining"
    tf_config, port = exchange_addresses(context, cluster_names(context), group=begin.group)
    publish_cluster(tf_config)
    with TemporaryDirectory(prefix="phalanx-") as folder:
        (Path(folder) / RANK_FILE).write_text(str(context.spec.rank))
        (Path(folder) / DATA_LINK).symlink_to(dataset.cache_folder.resolve())
        # Before serving: functions of the chief read these files by relative names.
        os.chdir(folder)
        server = _serve(context.spec.threads)
        port.close()
        context.record_start(context.job.precision, "as the job says")
        context.metrics.activity = "serving"
        recorder = _StepRecorder(context, dataset)
        # Waits until Finish or the end of this process: the lifelines end it.
        while not isinstance(message := context.control.inbox.get(), Finish):
            if isinstance(message, FromProcess):
                recorder.take(decode_message(message))
        # Leave the folder before it is deleted.
        os.chdir("/")
        del server
    if context.spec.role != "worker":
        return Done()
    return Done(times=context.metrics.times(sent_bytes=recorder.sent_bytes))


def _serve(threads: int) -> tf.distribute.Server:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    settings = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=max(2, threads)
    )
    return tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=settings,
    )


class _StepRecorder:
    def __init__(self, context: WorkerContext, dataset: Dataset) -> None:
        self._context = context
        self._dataset = dataset
        self.sent_bytes = 0

    def take(self, message: PeerMessage) -> None:
        match message:
            case StepsDone():
                for row in message.rows:
                    self._record(row)
            case TrainingMark():
                self._context.sampler.mark(message.what)
                if message.what == "begin":
                    self._context.metrics.activity = "training"
                    self._context.metrics.begin_epoch(
                        message.epoch, total=message.total, resumed=message.resumed
                    )

    def _record(self, row: StepRow) -> None:
        begin, ready, forward, backward, applied = row.stamps
        facts = StepFacts(
            num_samples=row.num_samples,
            loss_sum=row.loss_sum,
            num_correct=row.num_correct,
            forward_s=forward - ready,
            backward_s=backward - forward,
            exchange_s=applied - backward,
            apply_s=0.0,
            wait_s=0.0,
        )
        self.sent_bytes += row.sent_bytes
        record_step(
            self._context.log,
            self._context.metrics,
            facts,
            epoch=row.epoch,
            step=row.ticket,
            lr=row.lr,
            input_s=ready - begin,
            sent_bytes=self.sent_bytes,
            age_s=max(0.0, time.time() - applied),
        )
