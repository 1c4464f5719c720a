"""Dispatch tickets to TensorFlow's workers, and collect their results.

The dispatched function gathers its samples from arrays that the worker has read once, from its
machine's copy of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from phalanx.backends.tensorflow.cluster_worker import DATA_LINK, RANK_FILE
from phalanx.backends.tensorflow.input_pipeline import make_transform, read_stored
from phalanx.backends.tensorflow.network import Network
from phalanx.backends.tensorflow.step import Numbers, StepMaker
from phalanx.data.pipeline import Dataset
from phalanx.spec.job import JobSpec


@dataclass(frozen=True)
class DoneTicket:
    """Result of a ticket."""

    rank: int
    staleness: int
    """Updates that others made between its reading and its own."""
    loss_sum: float
    num_correct: int
    stamps: tuple[float, float, float, float, float]
    """On the worker's clock: before it; after input, forward, backward and apply."""


class PendingTicket:
    """A ticket in flight."""

    def __init__(self, remote: tf.distribute.coordinator.RemoteValue) -> None:
        self._remote = remote

    def wait(self) -> DoneTicket | None:
        """Return the result; None: the worker was lost before it could answer.

        TensorFlow waits for workers that are started again, and the controller ends this process if
        they are not.
        """
        try:
            rank, staleness, loss_sum, num_correct, stamps = self._remote.fetch()
        except (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError):
            return None
        begin, ready, forward, backward, applied = (float(one) for one in stamps)
        return DoneTicket(
            rank=int(rank),
            staleness=int(staleness),
            loss_sum=float(loss_sum),
            num_correct=int(num_correct),
            stamps=(begin, ready, forward, backward, applied),
        )


class TicketDispatcher:
    """Dispatch tickets to free workers."""

    def __init__(
        self,
        job: JobSpec,
        dataset: Dataset,
        network: Network,
        strategy: tf.distribute.ParameterServerStrategy,
    ) -> None:
        self._strategy = strategy
        self._dataset = dataset
        # Every update is divided by the samples of an ordinary one: the few that are left at the
        # end of an epoch move the parameters by their number.
        self._push_samples = job.global_batch / job.workers
        self._maker = StepMaker(job, network, options=None, may_be_empty=False)
        self._transform = make_transform(dataset.train, job.data.augment)
        with strategy.scope():
            # Counts updates on the servers, so that staleness can be known.
            self._version = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        stored = self._coordinator.create_per_worker_dataset(self._stored)
        self._iterator = iter(stored)
        self._work = tf.function(self._distributed, reduce_retracing=True)

    def dispatch(
        self,
        rows: npt.NDArray[np.int64],
        changes: npt.NDArray[np.int32],
        *,
        lr: float,
        number: int,
    ) -> PendingTicket:
        """Have a worker make update `number` (from 1) from these rows of the stored arrays."""
        arguments = (
            self._iterator,
            tf.constant(rows),
            tf.constant(changes),
            tf.constant(lr, tf.float32),
            tf.constant(number),
        )
        return PendingTicket(self._coordinator.schedule(self._work, args=arguments))

    def _stored(self) -> tf.data.Dataset:
        """Yield, on a worker, its rank and all stored samples, repeatedly and uncopied."""
        rank = tf.strings.to_number(tf.io.read_file(RANK_FILE), tf.int32)
        folder = self._dataset.cache_folder
        inputs, targets = read_stored(folder, Path(DATA_LINK), self._dataset.train)
        return tf.data.Dataset.from_tensors((rank, inputs, targets)).repeat()

    def _distributed(
        self,
        iterator: object,
        rows: tf.Tensor,
        changes: tf.Tensor,
        lr: tf.Tensor,
        number: tf.Tensor,
    ) -> Numbers:
        rank, inputs, targets = next(iterator)  # type: ignore[call-overload]  # TensorFlow's own

        def replica(
            inputs: tf.Tensor,
            targets: tf.Tensor,
            rows: tf.Tensor,
            changes: tf.Tensor,
            lr: tf.Tensor,
            number: tf.Tensor,
        ) -> Numbers:
            asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                own = tf.gather(inputs, rows)
                seen = self._version.read_value()
            loss_sum, correct, _, stamps = self._maker.replica_step(
                self._transform(own, changes),
                tf.gather(targets, rows),
                tf.constant(self._push_samples, tf.float32),
                lr,
                number,
            )
            begin, forward, backward, _, applied = tf.unstack(stamps)
            with tf.control_dependencies([applied]):
                version = self._version.assign_add(1, read_value=True)
            times = tf.stack([asked, begin, forward, backward, applied])
            return tf.convert_to_tensor(version) - 1 - seen, loss_sum, correct, times

        found = self._strategy.run(replica, args=(inputs, targets, rows, changes, lr, number))
        return rank, *found
