"""Synchronous training with TensorFlow: single, allreduce, mirrored and central_storage.

TensorFlow's side of the common training loop; the strategy decides where variables are and how
gradients are exchanged. The processes of a group make the same calls in the same order, as
tf.distribute demands.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from typing_extensions import override

from phalanx.backends.tensorflow.checkpoints import NetworkCheckpoints
from phalanx.backends.tensorflow.evaluator import PartEvaluator
from phalanx.backends.tensorflow.group import Group
from phalanx.backends.tensorflow.input_pipeline import (
    batches,
    hold,
    make_transform,
    may_be_empty,
    train_plan,
)
from phalanx.backends.tensorflow.network import Network
from phalanx.backends.tensorflow.profile import GraphProfiler
from phalanx.backends.tensorflow.step import Numbers, StepMaker
from phalanx.data.pipeline import Dataset
from phalanx.engine.result import check_loss
from phalanx.records.measures import Measures, ModelFigures
from phalanx.records.position import Position
from phalanx.strategy.base import StepFacts
from phalanx.worker.context import WorkerContext
from phalanx.worker.run_state import ResumePoint
from phalanx.worker.trainer import Trainer


class ReplicaBatch(NamedTuple):
    """One process's part of a step: one value for each of its replicas."""

    inputs: tf.Tensor
    targets: tf.Tensor
    global_count: int


class LockstepTrainer(Trainer[ReplicaBatch]):
    """Train the replicas of one process with TensorFlow."""

    def __init__(
        self, context: WorkerContext, dataset: Dataset, group: Group, network: Network
    ) -> None:
        job = context.job
        profiler = GraphProfiler(job.profile, run=context.run, process=context.spec.process)
        super().__init__(dataset, profiler=profiler, rank=group.ranks[0], num_workers=job.workers)
        self.checkpoints = NetworkCheckpoints(context, network, record=context.log.record)
        self._job = job
        self._metrics = context.metrics
        self._group = group
        self._network = network
        maker = StepMaker(
            job, network, options=group.options, may_be_empty=may_be_empty(dataset, job)
        )
        self._train = self._traced_step(maker)
        parts = (dataset.train, dataset.validation, dataset.test)
        shared = [part for part in parts if part.inputs is dataset.train.inputs]
        self._stored = hold(*shared)
        self._parts = PartEvaluator(
            maker, dataset, dict.fromkeys([part.name for part in shared], self._stored)
        )
        self._transform = make_transform(dataset.train, job.data.augment)
        # By a ring: each of the N chunks is sent N-1 times in reduce-scatter and in all-gather.
        size = job.workers if len(group.ranks) < job.workers else 1
        self._sent_per_step = int(2 * (size - 1) / size * 4 * network.num_parameters)
        self._sent_bytes = 0

    @property
    @override
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @override
    def batches(
        self, epoch: int, *, start_sample: int
    ) -> AbstractContextManager[Iterable[ReplicaBatch]]:
        return nullcontext(self._batches(epoch, start_sample))

    def _batches(self, epoch: int, start_sample: int) -> Iterator[ReplicaBatch]:
        streams = []
        for rank in self._group.ranks:
            plan = train_plan(
                self.dataset, self._job, epoch=epoch, rank=rank, start_sample=start_sample
            )
            prefetch = self._job.data.prefetch
            streams.append(batches(self._stored, plan, self._transform, prefetch=prefetch))
        for parts in zip(*streams, strict=True):
            yield ReplicaBatch(
                inputs=self._group.spread([part[0] for part in parts]),
                targets=self._group.spread([part[1] for part in parts]),
                global_count=int(parts[0][2]),
            )

    @override
    def step(self, batch: ReplicaBatch, *, lr: float, step_index: int) -> StepFacts:
        called = time.time()
        found = self._train(
            batch.inputs,
            batch.targets,
            tf.constant(batch.global_count, tf.int32),
            tf.constant(lr, tf.float32),
            tf.constant(step_index + 1, tf.int32),
        )
        facts = self._facts(found, called)
        check_loss(facts.loss_sum, step=step_index, rank=self.rank)
        self._sent_bytes += self._sent_per_step
        return facts

    @override
    def synchronize(self) -> None:
        """Average the statistics; all other state is equal by construction."""
        self._group.average(self._network.statistics)

    @override
    def total(self, values: Sequence[float]) -> Sequence[float]:
        return [float(one) for one in self._group.total(values)]

    @override
    def minimum(self, values: Sequence[float]) -> Sequence[float]:
        return [float(one) for one in self._group.least(np.array(values, dtype=np.float64))]

    @override
    def measure(self, part: str) -> Measures:
        begin = time.perf_counter()
        rank, size = self._group.eval_share
        sums = self.total(self._parts.sums(part, rank=rank, num_workers=size))
        return Measures.from_sums(
            *sums,
            duration_s=time.perf_counter() - begin,
            has_classes=self.dataset.is_classification,
        )

    @override
    def regularisation(self) -> float:
        return self._network.regularisation()

    @override
    def model_figures(self) -> ModelFigures:
        return self._network.figures()

    @override
    def save(self, position: Position, *, best: bool = False) -> None:
        if position.epoch_samples > 0:
            self.synchronize()
        self.keep_sums(position)
        if self._group.is_chief:
            self.checkpoints.save(position, self._network.state(), best=best)

    def keep_sums(self, position: Position) -> None:
        """Put the sums of the epoch in progress, over all workers, into the position."""
        if position.epoch_samples == 0:
            return
        metrics = self._metrics
        sums = self.total([metrics.epoch_loss_sum, metrics.epoch_correct, metrics.epoch_samples])
        position.epoch_loss_sum, position.epoch_correct = sums[0], int(sums[1])

    @override
    def restore(self, name: str) -> ResumePoint | None:
        point = self.checkpoints.restore(name)
        if point is not None and self._group.is_chief:
            # The sums of the epoch in progress are totals: they continue with the chief's.
            self._metrics.epoch_loss_sum = point.position.epoch_loss_sum
            self._metrics.epoch_correct = point.position.epoch_correct
            self._metrics.epoch_weight = point.position.epoch_samples
            self._metrics.epoch_samples = point.position.epoch_samples
        return point

    @override
    def finish(self) -> None:
        # A process that left now would break the group for those still evaluating.
        self._group.total([0.0])

    def _traced_step(self, maker: StepMaker) -> tf.types.experimental.PolymorphicFunction:
        """Trace the step's graph before training, as part of the start-up, where possible."""

        def distributed_step(*arguments: tf.Tensor) -> Numbers:
            found: Numbers = self._group.strategy.run(maker.replica_step, args=arguments)
            return found

        if len(self._group.ranks) > 1:
            return tf.function(distributed_step, reduce_retracing=True)
        part = self.dataset.train
        batch = (
            tf.TensorSpec([None, *part.inputs.shape[1:]], tf.as_dtype(part.normalizer.dtype)),
            tf.TensorSpec([None, *part.targets.shape[1:]], tf.as_dtype(part.targets.dtype)),
        )
        numbers = [tf.TensorSpec([], one) for one in (tf.int32, tf.float32, tf.int32)]
        step = tf.function(distributed_step, input_signature=(*batch, *numbers))
        step.get_concrete_function()
        return step

    def _facts(self, numbers: Numbers, called: float) -> StepFacts:
        losses, correct, counts, stamps = self._group.unpack(numbers)
        done = time.time()
        _, forward, backward, exchange, _ = stamps.max(axis=0).tolist()
        return StepFacts(
            num_samples=sum(counts.tolist()),
            loss_sum=sum(losses.tolist()),
            num_correct=sum(correct.tolist()),
            # Call and return of the graph belong to the step, and to none of its parts.
            forward_s=max(0.0, forward - called),
            backward_s=max(0.0, backward - forward),
            exchange_s=0.0 if self._group.is_alone else max(0.0, exchange - backward),
            apply_s=max(0.0, done - (backward if self._group.is_alone else exchange)),
        )
