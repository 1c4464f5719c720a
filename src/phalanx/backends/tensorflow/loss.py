"""Compute loss and accuracy from outputs and targets, as sums over samples: like `engine.loss`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import tensorflow as tf

from phalanx.spec.loss import LossSpec
from phalanx.spec.registry import load


def sum_and_correct(
    spec: LossSpec, outputs: tf.Tensor, targets: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the loss summed over samples (float32), and the number of correct ones (int64)."""
    assert spec.kind.tensorflow is not None, "the job was checked against its backend"
    outputs = tf.cast(outputs, tf.float32)
    function = cast("Callable[..., tf.Tensor]", load(spec.kind.tensorflow))
    total = tf.reduce_sum(function(outputs, targets, **spec.arguments))
    if targets.dtype.is_floating or len(outputs.shape) != 2:
        return total, tf.zeros((), tf.int64)
    right = tf.equal(tf.argmax(outputs, axis=1), tf.cast(targets, tf.int64))
    return total, tf.reduce_sum(tf.cast(right, tf.int64))


def cross_entropy(outputs: tf.Tensor, targets: tf.Tensor, *, spec: LossSpec) -> tf.Tensor:
    """Compute the cross-entropy of each sample."""
    if spec.label_smoothing == 0:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
    classes = outputs.shape[-1]
    share = spec.label_smoothing / classes
    wanted = tf.one_hot(targets, classes) * (1 - spec.label_smoothing) + share
    return tf.nn.softmax_cross_entropy_with_logits(wanted, outputs)


def squared_error(outputs: tf.Tensor, targets: tf.Tensor, *, spec: LossSpec) -> tf.Tensor:
    """Sum the squared error over samples; that of a sample is the mean over its outputs."""
    targets = tf.reshape(tf.cast(targets, tf.float32), tf.shape(outputs))
    width = max(1, outputs.shape[1:].num_elements() or 1)
    return tf.reduce_sum(tf.math.squared_difference(outputs, targets)) / width
