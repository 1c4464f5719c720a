"""Update rules on TensorFlow's variables: the arithmetic of `engine.update`, which is torch's.

Keras' optimisers differ in ways that change results: the place of epsilon, momentum when the rate
changes, weight decay. Each rule works on one variable and its slots, on that variable's device.
`number` counts updates from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import tensorflow as tf

from phalanx.spec.optimize import (
    AdadeltaSpec,
    AdagradSpec,
    AdamSpec,
    AdamwSpec,
    OptimizerSpec,
    SgdSpec,
)
from phalanx.spec.registry import load

Rule = Callable[..., None]
"""(variable, gradient, lr, number, *slots): updates the variable once."""


def make_rule(spec: OptimizerSpec) -> Rule:
    """Make the rule that the spec's kind names for TensorFlow."""
    assert spec.kind.tensorflow is not None, "the job was checked against its backend"
    return cast("Callable[[OptimizerSpec], Rule]", load(spec.kind.tensorflow))(spec)


def sgd_rule(spec: SgdSpec) -> Rule:
    """Make stochastic gradient descent, with momentum if the spec has it."""
    return partial(_sgd, spec)


def adagrad_rule(spec: AdagradSpec) -> Rule:
    """Make Adagrad."""
    return partial(_adagrad, spec)


def adadelta_rule(spec: AdadeltaSpec) -> Rule:
    """Make Adadelta."""
    return partial(_adadelta, spec)


def adam_rule(spec: AdamSpec) -> Rule:
    """Make Adam."""
    return partial(_adam, spec, False)


def adamw_rule(spec: AdamwSpec) -> Rule:
    """Make Adam with decoupled weight decay."""
    return partial(_adam, spec, True)


def clip(
    spec: OptimizerSpec, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Return the gradients with the regulariser's part, clipped by their global norm."""
    found = list(gradients)
    if spec.l2 > 0:
        found = [
            gradient + 2 * spec.l2 * variable if is_kernel(variable) else gradient
            for gradient, variable in zip(found, variables, strict=True)
        ]
    if spec.clip_norm is not None:
        norm = tf.linalg.global_norm(found)
        scale = tf.minimum(1.0, spec.clip_norm / tf.maximum(norm, 1e-30))
        found = [gradient * scale for gradient in found]
    return found


def is_kernel(variable: tf.Variable) -> bool:
    """Return whether the L2 regulariser applies: matrices and convolutions only."""
    return len(variable.shape) >= 2


def _decayed(spec: OptimizerSpec, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
    return gradient + spec.weight_decay * variable if spec.weight_decay > 0 else gradient


def _sgd(
    spec: SgdSpec,
    variable: tf.Variable,
    gradient: tf.Tensor,
    lr: tf.Tensor,
    number: tf.Tensor,
    *slots: tf.Variable,
) -> None:
    step = _decayed(spec, variable, gradient)
    if slots:
        (memory,) = slots
        moved = spec.momentum * memory + step
        memory.assign(moved)
        step = step + spec.momentum * moved if spec.nesterov else moved
    variable.assign_sub(lr * step)


def _adagrad(
    spec: AdagradSpec,
    variable: tf.Variable,
    gradient: tf.Tensor,
    lr: tf.Tensor,
    number: tf.Tensor,
    *slots: tf.Variable,
) -> None:
    (total,) = slots
    step = _decayed(spec, variable, gradient)
    squares = total + tf.square(step)
    total.assign(squares)
    variable.assign_sub(lr * step / (tf.sqrt(squares) + spec.eps))


def _adadelta(
    spec: AdadeltaSpec,
    variable: tf.Variable,
    gradient: tf.Tensor,
    lr: tf.Tensor,
    number: tf.Tensor,
    *slots: tf.Variable,
) -> None:
    mean_square, mean_delta = slots
    step = _decayed(spec, variable, gradient)
    squares = spec.rho * mean_square + (1 - spec.rho) * tf.square(step)
    mean_square.assign(squares)
    delta = tf.sqrt(mean_delta + spec.eps) / tf.sqrt(squares + spec.eps) * step
    mean_delta.assign(spec.rho * mean_delta + (1 - spec.rho) * tf.square(delta))
    variable.assign_sub(lr * delta)


def _adam(
    spec: AdamSpec | AdamwSpec,
    is_decoupled: bool,
    variable: tf.Variable,
    gradient: tf.Tensor,
    lr: tf.Tensor,
    number: tf.Tensor,
    *slots: tf.Variable,
) -> None:
    first, second = slots
    beta1, beta2 = spec.betas
    if is_decoupled:
        kept = variable * (1 - lr * spec.weight_decay)
        step = gradient
    else:
        kept = variable
        step = _decayed(spec, variable, gradient)
    mean = beta1 * first + (1 - beta1) * step
    squares = beta2 * second + (1 - beta2) * tf.square(step)
    first.assign(mean)
    second.assign(squares)
    count = tf.cast(number, tf.float32)
    spread = tf.sqrt(squares) / tf.sqrt(1 - tf.pow(beta2, count)) + spec.eps
    moved = lr / (1 - tf.pow(beta1, count)) * mean / spread
    if is_decoupled:
        variable.assign(kept - moved)
    else:
        variable.assign_sub(moved)
