"""Workers that step together: single, allreduce, mirrored and central_storage.

One loop for all four; the strategy decides where variables live and how gradients are exchanged.
The processes of a group do the same calls in the same order, as tf.distribute demands.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from phalanx.data.pipeline import Dataset, Part
from phalanx.errors import EngineError
from phalanx.peer.tensorflow.book import Book, Measures
from phalanx.peer.tensorflow.feed import (
    batches,
    eval_plan,
    hold,
    make_transform,
    may_be_empty,
    train_plan,
)
from phalanx.peer.tensorflow.group import Group
from phalanx.peer.tensorflow.network import Network
from phalanx.peer.tensorflow.profile import StepProfiler
from phalanx.peer.tensorflow.step import Numbers, StepMaker, StepNumbers, read_numbers
from phalanx.strategy.base import StepFacts
from phalanx.wire.phases import Limit
from phalanx.worker.inject import Slowdown
from phalanx.worker.rate import Rate
from phalanx.worker.station import Station
from phalanx.worker.steps import record_standstill, record_step

_WORKER_BATCH = 256


class LockstepLoop:
    """One process's way through a phase.

    Args:
        station: Of this process.
        dataset: What is learnt.
        group: The strategy and this process's replicas.
        network: What is trained.
        book: The run so far.
    """

    def __init__(
        self, station: Station, dataset: Dataset, group: Group, network: Network, book: Book
    ) -> None:
        self._station = station
        self._job = station.job
        self._dataset = dataset
        self._group = group
        self._network = network
        self._book = book
        self._rate = Rate(self._job, samples_per_epoch=dataset.train.num_samples)
        self._profiler = StepProfiler(
            self._job.profile, run=station.run, process=station.spec.process
        )
        self._slowdown = Slowdown(self._job.inject, rank=group.ranks[0])
        self._maker = StepMaker(
            self._job,
            network,
            options=group.options,
            may_be_empty=may_be_empty(dataset, self._job),
        )
        self._train = self._traced_step()
        self._evaluate = tf.function(self._maker.measure, reduce_retracing=True)
        parts = (dataset.train, dataset.validation, dataset.test)
        shared = [part for part in parts if part.inputs is dataset.train.inputs]
        self._stored = dict.fromkeys([part.name for part in shared], hold(*shared))
        self._transform = make_transform(dataset.train, self._job.data.augment)
        self._plain = make_transform(dataset.train, ())
        # By a ring: each of the N chunks goes around N-1 times while reducing, and while spreading.
        size = self._job.workers if len(group.ranks) < self._job.workers else 1
        self._sent_per_step = int(2 * (size - 1) / size * 4 * network.num_parameters)
        self._sent_bytes = 0

    def advance(self, limit: Limit | None) -> None:
        """Train until the job is over, or until the limit."""
        book = self._book
        while not book.is_over and not book.is_at(limit):
            self._train_epoch(limit)
            if book.is_at_end_of_epoch:
                self._end_epoch()

    def conclude(self) -> Measures | None:
        """Measure the test part, if the job wants that."""
        if self._job.evaluate == "never" or self._dataset.test.num_samples == 0:
            return None
        test = self._measure("test", self._dataset.test)
        self._book.note_evaluation("test", test)
        return test

    def settle(self) -> None:
        """Bring all replicas to one state: statistics are averaged."""
        begin = time.perf_counter()
        self._group.average(self._network.statistics)
        if self._group.is_alone:
            return
        duration_s = time.perf_counter() - begin
        self._book.position.train_s += duration_s
        record_standstill(
            self._station.log,
            self._station.tally,
            epoch=self._book.position.epoch,
            what="settle",
            duration_s=duration_s,
        )
        self._split_exchange_time()

    @property
    def sent_bytes(self) -> int:
        """What this process has sent, by the ring's own formula."""
        return self._sent_bytes

    def _train_epoch(self, limit: Limit | None) -> None:
        position, tally = self._book.position, self._station.tally
        total = self._dataset.train.num_samples
        tally.begin_epoch(position.epoch, total=total, resumed=position.epoch_samples > 0)
        tally.activity = "training"
        self._station.sampler.mark("begin")
        self._profiler.enter(position.epoch)
        begin = asked = time.perf_counter()
        for inputs, targets, count in self._batches():
            input_s = time.perf_counter() - asked
            facts = self._step(inputs, targets, count, input_s=input_s)
            self._profiler.step_done(input_s=input_s, exchange_s=facts.exchange_s)
            if self._book.is_mid_epoch_checkpoint_due:
                position.train_s += time.perf_counter() - begin
                self._save()
                begin = time.perf_counter()
            if self._book.is_at(limit):
                break
            asked = time.perf_counter()
        position.train_s += time.perf_counter() - begin
        self._profiler.leave()

    def _batches(self) -> Iterator[tuple[tf.Tensor, tf.Tensor, int]]:
        """This process's part of each step: one value for each of its replicas."""
        position = self._book.position
        streams = []
        for rank in self._group.ranks:
            plan = train_plan(
                self._dataset,
                self._job,
                epoch=position.epoch,
                rank=rank,
                start_sample=position.epoch_samples,
            )
            streams.append(
                batches(
                    self._stored["train"],
                    plan,
                    self._transform,
                    prefetch=self._job.data.prefetch,
                )
            )
        for parts in zip(*streams, strict=True):
            inputs = self._group.spread([part[0] for part in parts])
            targets = self._group.spread([part[1] for part in parts])
            yield inputs, targets, int(parts[0][2])

    def _step(
        self, inputs: tf.Tensor, targets: tf.Tensor, global_count: int, *, input_s: float
    ) -> StepFacts:
        position = self._book.position
        total = self._dataset.train.num_samples * self._job.epochs
        slept_s = self._slowdown.wait(position.samples / total)
        lr = self._rate(position.samples)
        called = time.time()
        found = self._train(
            inputs,
            targets,
            tf.constant(global_count, tf.int32),
            tf.constant(lr, tf.float32),
            tf.constant(position.updates + 1, tf.int32),
        )
        facts = self._facts(self._group.unpack(found), called)
        self._check(facts, position.updates)
        facts = self._slowdown.count(facts, slept_s)
        position.samples += global_count
        position.epoch_samples += global_count
        position.updates += 1
        self._sent_bytes += self._sent_per_step
        record_step(
            self._station.log,
            self._station.tally,
            facts,
            epoch=position.epoch,
            step=position.updates,
            lr=lr,
            input_s=input_s,
            sent_bytes=self._sent_bytes,
        )
        return facts

    def _traced_step(self) -> tf.types.experimental.PolymorphicFunction:
        """The step as a graph; made before training, as a part of starting up, where it can be."""
        if len(self._group.ranks) > 1:
            return tf.function(self._distributed_step, reduce_retracing=True)
        part = self._dataset.train
        batch = (
            tf.TensorSpec([None, *part.inputs.shape[1:]], tf.float32),
            tf.TensorSpec([None, *part.targets.shape[1:]], tf.as_dtype(part.targets.dtype)),
        )
        numbers = [tf.TensorSpec([], one) for one in (tf.int32, tf.float32, tf.int32)]
        step = tf.function(self._distributed_step, input_signature=(*batch, *numbers))
        step.get_concrete_function()
        return step

    def _distributed_step(self, *arguments: tf.Tensor) -> Numbers:
        found: Numbers = self._group.strategy.run(self._maker.replica_step, args=arguments)
        return found

    def _facts(self, replicas: list[Numbers], called: float) -> StepFacts:
        """The sums over this process's replicas, and where its time went."""
        found: list[StepNumbers] = [read_numbers(one) for one in replicas]
        done = time.time()
        forward, backward, exchange = (
            max(one.stamps[index] for one in found) for index in (1, 2, 3)
        )
        # The call and the return of the graph belong to the step, and to nothing else.
        forward_s = max(0.0, forward - called)
        return StepFacts(
            num_samples=sum(one.num_samples for one in found),
            loss_sum=sum(one.loss_sum for one in found),
            num_correct=sum(one.num_correct for one in found),
            forward_s=forward_s,
            backward_s=max(0.0, backward - forward),
            exchange_s=0.0 if self._group.is_alone else max(0.0, exchange - backward),
            apply_s=max(0.0, done - (backward if self._group.is_alone else exchange)),
        )

    def _check(self, facts: StepFacts, step: int) -> None:
        if not math.isfinite(facts.loss_sum):
            raise EngineError(
                f"the loss became {facts.loss_sum} in step {step} on rank {self._group.ranks[0]}; "
                "lower optimizer.lr, add schedule.warmup or set optimizer.clip_norm",
                step=step,
                rank=self._group.ranks[0],
            )

    def _end_epoch(self) -> None:
        tally = self._station.tally
        self.settle()
        self._station.sampler.mark("end")
        sums = self._group.total([tally.epoch_loss_sum, tally.epoch_correct, tally.epoch_samples])
        train = _means(sums, duration_s=self._book.position.train_s)
        validation = None
        if self._book.validates and self._dataset.validation.num_samples > 0:
            validation = self._measure("validation", self._dataset.validation)
        save, best = self._book.end_epoch(
            train, validation, regularisation=self._network.regularisation(), lr=tally.lr
        )
        if save:
            self._save(best=best)

    def _save(self, *, best: bool = False) -> None:
        if self._book.position.epoch_samples > 0:
            self._group.average(self._network.statistics)
        self._keep_sums()
        if self._group.is_chief:
            self._book.save(self._network.state(), order=self._network.order, best=best)

    def _keep_sums(self) -> None:
        """Put the sums of the epoch in progress, over all workers, into the position."""
        tally, position = self._station.tally, self._book.position
        if position.epoch_samples == 0:
            return
        sums = self._group.total([tally.epoch_loss_sum, tally.epoch_correct, tally.epoch_samples])
        position.epoch_loss_sum, position.epoch_correct = float(sums[0]), int(sums[1])

    def leave(self) -> None:
        """End the phase before the job is over; the chief writes down what the next begins with."""
        if self._book.position.epoch_samples > 0:
            self.settle()
        self._station.sampler.mark("end")
        self._keep_sums()

    def _measure(self, name: str, part: Part) -> Measures:
        self._station.tally.activity = f"measuring {name}"
        begin = time.perf_counter()
        if name not in self._stored:
            self._stored[name] = hold(part)
        rank, size = self._group.eval_share
        plan = eval_plan(part, rank=rank, num_workers=size, worker_batch=_WORKER_BATCH)
        loss_sum, num_correct, num_samples = 0.0, 0, 0
        for inputs, targets, count in batches(self._stored[name], plan, self._plain, prefetch=2):
            loss, correct = self._evaluate(inputs, targets)
            loss_sum += float(loss)
            num_correct += int(correct)
            num_samples += int(count)
        sums = self._group.total([loss_sum, num_correct, num_samples])
        return _means(sums, duration_s=time.perf_counter() - begin)

    def _split_exchange_time(self) -> None:
        """Divide the time in exchanges into communication and waiting for others.

        The worker that arrives last at an exchange waits for nobody: its time is the communication,
        and what the others spent beyond it they waited.
        """
        tally = self._station.tally
        own = np.array(tally.exchanges)
        tally.wait_s += float((own - self._group.least(own)).sum())
        tally.exchanges = []


def _means(sums: npt.NDArray[np.float64], *, duration_s: float) -> Measures:
    count = max(1.0, float(sums[2]))
    return Measures(
        loss=float(sums[0]) / count,
        accuracy=float(sums[1]) / count,
        num_samples=int(sums[2]),
        duration_s=duration_s,
    )
