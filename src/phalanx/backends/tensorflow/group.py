"""Synchronous strategies of tf.distribute, and their collectives for the loop.

MultiWorkerMirrored has one replica in each process; mirrored and central storage have all of them
in one, each on a separate logical device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from phalanx.backends.tensorflow.step import SUM, Numbers
from phalanx.errors import PeerError
from phalanx.spec.job import JobSpec

Floats = npt.NDArray[np.float64]
_MEAN = tf.distribute.ReduceOp.MEAN


class Group:
    """This process among the workers of a synchronous strategy; no `options`: one replica."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        ranks: Sequence[int],
        num_workers: int,
        options: tf.distribute.experimental.CommunicationOptions | None,
    ) -> None:
        self.strategy = strategy
        self.ranks = tuple(ranks)
        self.options = options
        self._num_workers = num_workers
        self._sum = tf.function(self._summed, reduce_retracing=True)
        self._mean = tf.function(self._averaged)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes for all."""
        return self.ranks[0] == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is one replica."""
        return self._num_workers == 1

    @property
    def _is_whole(self) -> bool:
        return len(self.ranks) == self._num_workers

    @property
    def eval_share(self) -> tuple[int, int]:
        """The share of an evaluation that this process takes: its index, of how many."""
        return (0, 1) if self._is_whole else (self.ranks[0], self._num_workers)

    def spread(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return one value for each replica of this process."""
        if len(values) == 1:
            return values[0]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group]
        )

    def unpack(self, numbers: Numbers) -> list[npt.NDArray[Any]]:
        """Return each of a step's results, with one row for every replica of this process."""
        return [np.stack(self.strategy.experimental_local_results(one)) for one in numbers]

    def total(self, values: Sequence[float]) -> Floats:
        """Return the sums over all processes; all call it together."""
        own = np.array(values, dtype=np.float64)
        if self._is_whole:
            return own
        return np.asarray(self._sum(tf.constant(own)).numpy())

    def least(self, values: Floats) -> Floats:
        """Return the minimum of each over all processes; all call it together."""
        if self._is_whole or not len(values):
            return values
        # TensorFlow adds but does not compare: each process fills a separate row.
        rows = np.zeros((self._num_workers, len(values)))
        rows[self.ranks[0]] = values
        everybody: Floats = np.asarray(self._sum(tf.constant(rows)).numpy())
        least: Floats = everybody.min(axis=0)
        return least

    def average(self, variables: Sequence[tf.Variable]) -> None:
        """Give every replica the mean of all; all processes call it together."""
        if self.is_alone or not variables:
            return
        self._variables = list(variables)
        self._mean()

    def _summed(self, own: tf.Tensor) -> tf.Tensor:
        def exchange(value: tf.Tensor) -> tf.Tensor:
            # Made here: only tensors made by a replica have a device to be reduced to.
            own = tf.identity(value)
            return tf.distribute.get_replica_context().all_reduce(SUM, own)

        return self.strategy.run(exchange, args=(own,))

    def _averaged(self) -> None:
        def exchange() -> None:
            context = tf.distribute.get_replica_context()
            # As above: a value read from a mirrored variable has no device.
            own = [tf.identity(tf.convert_to_tensor(one)) for one in self._variables]
            means = context.all_reduce(_MEAN, own)
            for variable, mean in zip(self._variables, means, strict=True):
                variable.assign(mean)

        self.strategy.run(exchange)


def form_group(job: JobSpec, *, rank: int) -> Group:
    """Return the strategy of a synchronous job; sets TF_CONFIG where it is needed.

    Raises:
        PeerError: The other workers did not come.
    """
    strategy = job.strategy
    everyone = range(job.workers)
    if job.workers == 1 or strategy.name == "single":
        one = tf.distribute.OneDeviceStrategy("/cpu:0")
        return Group(one, ranks=[0], num_workers=1, options=None)
    options = _options(job)
    if strategy.name in ("mirrored", "central_storage"):
        devices = [f"/cpu:{index}" for index in everyone]
        made = (
            tf.distribute.MirroredStrategy(
                devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
            )
            if strategy.name == "mirrored"
            else tf.distribute.experimental.CentralStorageStrategy(devices, "/cpu:0")
        )
        return Group(made, ranks=everyone, num_workers=job.workers, options=options)
    try:
        made = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            communication_options=options,
        )
    except tf.errors.OpError as error:
        raise PeerError(f"the group of {job.workers} workers did not form: {error}") from error
    return Group(made, ranks=[rank], num_workers=job.workers, options=options)


def _options(job: JobSpec) -> tf.distribute.experimental.CommunicationOptions:
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=job.strategy.bucket_size or 0,
        timeout_seconds=job.deadlines.exchange_s,
        implementation=tf.distribute.experimental.CommunicationImplementation.RING,
    )
