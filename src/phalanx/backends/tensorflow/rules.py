"""Update rules on TensorFlow's variables: the arithmetic of `engine.update`, which is torch's.

Keras' optimisers differ in ways that change results: the place of epsilon, momentum when the rate
changes, weight decay. Each rule works on one variable and its slots, on that variable's device.
`number` counts updates from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

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

Tensor: TypeAlias = tf.Tensor
Variable: TypeAlias = tf.Variable
Rule = Callable[..., None]
"""(variable, gradient, lr, number, *slots): updates the variable once."""


def make_rule(spec: OptimizerSpec) -> Rule:
    """Make the rule that the spec's kind names for TensorFlow."""
    assert spec.kind.tensorflow is not None, "the job was checked against its backend"
    return cast("Callable[[OptimizerSpec], Rule]", load(spec.kind.tensorflow))(spec)


def sgd_rule(spec: SgdSpec) -> Rule:
    """Make stochastic gradient descent, with momentum if the spec has it."""

    def update(variable: Variable, grad: Tensor, lr: Tensor, _: Tensor, *slots: Variable) -> None:
        step = _decayed(spec, variable, grad)
        if slots:
            (memory,) = slots
            moved = spec.momentum * memory + step
            memory.assign(moved)
            step = step + spec.momentum * moved if spec.nesterov else moved
        variable.assign_sub(lr * step)

    return update


def adagrad_rule(spec: AdagradSpec) -> Rule:
    """Make Adagrad."""

    def update(variable: Variable, grad: Tensor, lr: Tensor, _: Tensor, total: Variable) -> None:
        step = _decayed(spec, variable, grad)
        squares = total + tf.square(step)
        total.assign(squares)
        variable.assign_sub(lr * step / (tf.sqrt(squares) + spec.eps))

    return update


def adadelta_rule(spec: AdadeltaSpec) -> Rule:
    """Make Adadelta."""

    def update(variable: Variable, grad: Tensor, lr: Tensor, _: Tensor, *slots: Variable) -> None:
        mean_square, mean_delta = slots
        step = _decayed(spec, variable, grad)
        squares = spec.rho * mean_square + (1 - spec.rho) * tf.square(step)
        mean_square.assign(squares)
        delta = tf.sqrt(mean_delta + spec.eps) / tf.sqrt(squares + spec.eps) * step
        mean_delta.assign(spec.rho * mean_delta + (1 - spec.rho) * tf.square(delta))
        variable.assign_sub(lr * delta)

    return update


def adam_rule(spec: AdamSpec | AdamwSpec, *, is_decoupled: bool = False) -> Rule:
    """Make Adam, with weight decay in the gradient or decoupled from it."""
    beta1, beta2 = spec.betas

    def update(
        variable: Variable, grad: Tensor, lr: Tensor, number: Tensor, *slots: Variable
    ) -> None:
        first, second = slots
        step = grad if is_decoupled else _decayed(spec, variable, grad)
        mean = beta1 * first + (1 - beta1) * step
        squares = beta2 * second + (1 - beta2) * tf.square(step)
        kept = variable * (1 - lr * spec.weight_decay) if is_decoupled else variable
        first.assign(mean)
        second.assign(squares)
        count = tf.cast(number, tf.float32)
        spread = tf.sqrt(squares) / tf.sqrt(1 - tf.pow(beta2, count)) + spec.eps
        moved = lr / (1 - tf.pow(beta1, count)) * mean / spread
        if is_decoupled:
            variable.assign(kept - moved)
        else:
            variable.assign_sub(moved)

    return update


def adamw_rule(spec: AdamwSpec) -> Rule:
    """Make Adam with decoupled weight decay."""
    return adam_rule(spec, is_decoupled=True)


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
