"""From outputs and targets to loss and accuracy, as sums over samples: like `engine.loss`."""

from __future__ import annotations

import tensorflow as tf

from phalanx.spec.optimize import LossSpec


def sum_and_correct(
    spec: LossSpec, outputs: tf.Tensor, targets: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Loss summed over samples (float32), and how many are right (int64)."""
    outputs = tf.cast(outputs, tf.float32)
    if spec.name == "mse":
        targets = tf.reshape(tf.cast(targets, tf.float32), tf.shape(outputs))
        width = max(1, outputs.shape[1:].num_elements() or 1)
        error = tf.reduce_sum(tf.math.squared_difference(outputs, targets)) / width
        return error, tf.zeros((), tf.int64)
    if spec.label_smoothing > 0:
        classes = outputs.shape[-1]
        share = spec.label_smoothing / classes
        wanted = tf.one_hot(targets, classes) * (1 - spec.label_smoothing) + share
        losses = tf.nn.softmax_cross_entropy_with_logits(wanted, outputs)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
    right = tf.equal(tf.argmax(outputs, axis=1), tf.cast(targets, tf.int64))
    return tf.reduce_sum(losses), tf.reduce_sum(tf.cast(right, tf.int64))
