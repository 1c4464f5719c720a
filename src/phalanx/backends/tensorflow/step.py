"""One training step as a graph, with timestamps of its parts; and evaluation.

TensorFlow runs operations as soon as their inputs are there, so a clock in between sees nothing
unless it is made an input: each stamp depends on what is before it, and what comes after depends on
it. Under servers reading the variables is part of the forward pass, and the update rule runs where
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from phalanx.backends.tensorflow.loss import sum_and_correct
from phalanx.backends.tensorflow.network import Network
from phalanx.backends.tensorflow.rules import clip, make_rule
from phalanx.spec.job import JobSpec

SUM = tf.distribute.ReduceOp.SUM
SPAN = "phalanx_"
"""Prefix of operator names in a span; gradients of a span are named after it."""
Numbers = tuple[tf.Tensor, ...]


class StepMaker:
    """Build the graph of a step for one network under one strategy.

    Without `options` there is one replica, which exchanges nothing.
    """

    def __init__(
        self,
        job: JobSpec,
        network: Network,
        *,
        options: tf.distribute.experimental.CommunicationOptions | None,
        may_be_empty: bool,
    ) -> None:
        self._loss = job.loss
        self._spec = job.optimizer
        self._network = network
        self._pieces = network.pieces
        self._variables = [piece.variable for piece in self._pieces]
        self._rule = make_rule(job.optimizer)
        self._options = options
        self._may_be_empty = may_be_empty

    def replica_step(
        self,
        inputs: tf.Tensor,
        targets: tf.Tensor,
        global_count: tf.Tensor,
        lr: tf.Tensor,
        number: tf.Tensor,
    ) -> Numbers:
        """Train one replica on its part of a batch; called in a replica's context.

        Returns loss and correct predictions summed over samples, samples, and five stamps: before
        it; after forward, backward, exchange and apply, in seconds since 1970.
        """
        begin = _stamp([inputs, targets])
        inputs = _after(begin, inputs)
        count = tf.shape(targets)[0]
        if self._may_be_empty:
            loss_sum, correct, forwarded, *gradients = tf.cond(
                count > 0,
                lambda: self._gradients(inputs, targets, global_count),
                self._nothing,
            )
        else:
            found = self._gradients(inputs, targets, global_count)
            loss_sum, correct, forwarded, *gradients = found
        backwarded = _stamp(gradients)
        gradients = [_after(backwarded, one) for one in gradients]
        context = tf.distribute.get_replica_context()
        exchanged, applied = context.merge_call(self._merge, args=(gradients, lr, number))
        stamps = tf.stack([begin, forwarded, backwarded, exchanged, applied])
        return loss_sum, correct, count, stamps

    def measure(self, inputs: tf.Tensor, targets: tf.Tensor) -> Numbers:
        """Return loss and correct predictions summed over samples, without learning."""
        outputs = self._network.model(inputs, training=False)
        return sum_and_correct(self._loss, outputs, targets)

    def _gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, global_count: tf.Tensor
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            with span("forward"):
                outputs = self._network.model(inputs, training=True)
            with span("loss"):
                loss_sum, correct = sum_and_correct(self._loss, outputs, targets)
        forwarded = _stamp([loss_sum, correct])
        # The true size of the whole batch: sums over replicas are means, however it is cut.
        share = _after(forwarded, 1.0 / tf.cast(global_count, tf.float32))
        gradients = tape.gradient(
            loss_sum,
            self._variables,
            output_gradients=share,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [loss_sum, correct, forwarded, *map(tf.convert_to_tensor, gradients)]

    def _nothing(self) -> list[tf.Tensor]:
        zeros = [tf.zeros(variable.shape) for variable in self._variables]
        return [tf.zeros(()), tf.zeros((), tf.int64), tf.timestamp(), *zeros]

    def _merge(
        self,
        strategy: tf.distribute.Strategy,
        gradients: Sequence[tf.Tensor],
        lr: tf.Tensor,
        number: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Exchange gradients and update the variables; all replicas of a process together."""
        if self._options is not None:
            pairs = list(zip(gradients, self._variables, strict=True))
            with span("all_reduce"):
                gradients = strategy.extended.batch_reduce_to(SUM, pairs, options=self._options)
        local = [strategy.experimental_local_results(one)[0] for one in gradients]
        exchanged = _stamp(local)
        lr, number = (strategy.experimental_local_results(one)[0] for one in (lr, number))
        with span("apply"):
            gradients = clip(self._spec, gradients, self._variables)
            for piece, gradient in zip(self._pieces, gradients, strict=True):
                arguments = (gradient, lr, number, *piece.slots)
                strategy.extended.update(piece.variable, self._rule, args=arguments, group=False)
        # Reading waits for the updates before it: TensorFlow keeps the order on each variable.
        applied = _stamp([one[(0,) * len(one.shape)] for one in self._variables[:1]])
        return exchanged, applied


def span(name: str) -> AbstractContextManager[object]:
    """Mark operators made inside the block, for the profiler."""
    scope: AbstractContextManager[object] = tf.name_scope(SPAN + name)
    return scope


def _stamp(after: Sequence[tf.Tensor]) -> tf.Tensor:
    with tf.control_dependencies(after):
        return tf.timestamp()


def _after(stamp: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([stamp]):
        return tf.identity(value)
