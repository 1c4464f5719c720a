"""The roles that TensorFlow's chief gives orders to: workers and parameter servers.

TensorFlow's own server does the work in threads of its own; this process waits for the end and
keeps its records. It stands in a folder of its own, in which the functions that the chief sends
find, by names that are the same for all workers, what differs between them: the rank, and where
the decoded data lies.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import tensorflow as tf

from phalanx.data.pipeline import Dataset
from phalanx.peer.tensorflow.environment import publish_cluster
from phalanx.peer.tensorflow.meeting import meet
from phalanx.peer.tensorflow.talk import Moment, StepRow, Steps, understand
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.strategy.base import StepFacts
from phalanx.wire.messages import Done
from phalanx.wire.peers import Relayed
from phalanx.wire.phases import Begin
from phalanx.wire.serving import Finish
from phalanx.worker.station import Station
from phalanx.worker.steps import record_step

RANK_FILE = "rank"
DATA_LINK = "data"


def cluster_names(station: Station) -> list[str]:
    """The processes of a parameter server's cluster."""
    strategy = station.job.strategy
    assert isinstance(strategy, ParameterServerSpec)
    assert isinstance(strategy.servers, int)
    servers = [f"server-{rank}" for rank in range(strategy.servers)]
    return ["chief-0", *servers, *(f"worker-{rank}" for rank in range(station.job.workers))]


def run_servant(station: Station, dataset: Dataset, begin: Begin) -> Done:
    """Serve TensorFlow's chief until the phase is over."""
    station.tally.activity = "joining"
    tf_config, port = meet(station, cluster_names(station), group=begin.group)
    publish_cluster(tf_config)
    with TemporaryDirectory(prefix="phalanx-") as folder:
        (Path(folder) / RANK_FILE).write_text(str(station.spec.rank))
        (Path(folder) / DATA_LINK).symlink_to(dataset.cache_folder.resolve())
        os.chdir(folder)
        server = _serve(station.spec.threads)
        port.close()
        station.record_start(station.job.precision, "as the job says")
        station.tally.activity = "serving"
        recorder = _Recorder(station, dataset)
        # Waits until Finish or the end of this process: the lifelines see to that.
        while not isinstance(word := station.control.inbox.get(), Finish):
            if isinstance(word, Relayed):
                recorder.take(understand(word))
        os.chdir("/")
        del server
    if station.spec.role != "worker":
        return Done()
    return Done(times=station.tally.times(sent_bytes=recorder.sent_bytes))


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


class _Recorder:
    """Writes down what the chief says about this worker."""

    def __init__(self, station: Station, dataset: Dataset) -> None:
        self._station = station
        self._dataset = dataset
        self.sent_bytes = 0

    def take(self, word: object) -> None:
        match word:
            case Steps():
                for row in word.rows:
                    self._record(row)
            case Moment():
                self._station.sampler.mark(word.what)
                if word.what == "begin":
                    self._station.tally.activity = "training"
                    self._station.tally.begin_epoch(
                        word.epoch, total=word.total, resumed=word.resumed
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
            self._station.log,
            self._station.tally,
            facts,
            epoch=row.epoch,
            step=row.ticket,
            lr=row.lr,
            input_s=ready - begin,
            sent_bytes=self.sent_bytes,
            age_s=max(0.0, time.time() - applied),
        )
