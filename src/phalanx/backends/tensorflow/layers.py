"""Layers of the Keras twins, each equal to torch's layer of that kind.

Keras' defaults differ from torch's in three places that change numbers: batch normalisation and
dropout (reimplemented here) and the padding of strided convolutions (here explicit zeros). Layers
are named by their path in the torch network, by which the counterpart of a variable is found.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import keras
import numpy as np
import tensorflow as tf

Law = Literal["glorot-uniform", "he-normal"]
Tensor: TypeAlias = keras.KerasTensor
Layer = Callable[[Tensor], Tensor]

# Of the old running statistics; torch counts the share of the new ones, 0.1.
KEPT_SHARE = 0.9
EPSILON = 1e-5


@dataclass(frozen=True)
class LayerKit:
    """Factory of the layers of one network.

    Seed and name of a layer decide its initial weights; no order of creation matters.
    """

    seed: int
    policy: str
    """Keras' name of the number format: float32 or mixed_bfloat16."""
    convolutions: Law = "glorot-uniform"
    dense: Law = "glorot-uniform"

    def convolution(
        self,
        name: str,
        filters: int,
        size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ) -> Layer:
        """Build a convolution with `padding` zeros on every side of the image."""
        framed = padding > 0 and stride > 1
        layer = keras.layers.Conv2D(
            filters,
            size,
            strides=stride,
            # Keras' "same" puts the frame of a strided convolution at the right and bottom only.
            padding="same" if padding > 0 and not framed else "valid",
            use_bias=bias,
            kernel_initializer=self._initializer(self.convolutions, name),
            name=name,
            dtype=self.policy,
        )
        if not framed:
            return layer  # type: ignore[no-any-return]  # keras has no types
        frame = keras.layers.ZeroPadding2D(padding, name=f"{name}.frame", dtype=self.policy)
        return lambda inputs: layer(frame(inputs))

    def line_convolution(self, name: str, filters: int, size: int) -> Layer:
        """Build a length-preserving convolution along a line; the longer margin is on the right."""
        return keras.layers.Conv1D(  # type: ignore[no-any-return]  # keras has no types
            filters,
            size,
            padding="same",
            kernel_initializer=self._initializer(self.convolutions, name),
            name=name,
            dtype=self.policy,
        )

    def fully_connected(self, name: str, width: int) -> Layer:
        """Build a dense layer without activation."""
        return keras.layers.Dense(  # type: ignore[no-any-return]  # keras has no types
            width,
            kernel_initializer=self._initializer(self.dense, name),
            name=name,
            dtype=self.policy,
        )

    def norm(self, name: str) -> Layer:
        """Build batch normalisation over all but the last axis."""
        return BatchNorm(name=name, dtype=self.policy)

    def dropout(self, name: str, rate: float) -> Layer:
        """Apply dropout; without a rate, the identity."""
        if rate == 0:
            return lambda inputs: inputs
        return Dropout(rate, name=name, dtype=self.policy)

    def relu(self, inputs: Tensor) -> Tensor:
        """Apply ReLU."""
        return keras.ops.relu(inputs)

    def flatten(self, inputs: Tensor) -> Tensor:
        """Flatten to one row per sample, pixels in the order height, width, channel."""
        return keras.layers.Flatten(dtype=self.policy)(inputs)

    def flatten_by_channel(self, inputs: Tensor) -> Tensor:
        """Flatten to one row per sample, channel by channel, as torch does."""
        channel, *others = len(inputs.shape) - 1, *range(1, len(inputs.shape) - 1)
        turned = keras.layers.Permute((channel, *others), dtype=self.policy)(inputs)
        return self.flatten(turned)

    def max_pool(self, inputs: Tensor, *, whole: bool = True) -> Tensor:
        """Apply 2x2 max-pooling; incomplete fields count unless `whole`."""
        padding = "valid" if whole else "same"
        return keras.layers.MaxPooling2D(2, padding=padding, dtype=self.policy)(inputs)

    def line_pool(self, inputs: Tensor) -> Tensor:
        """Apply max-pooling of width 3 and stride 2 along a line."""
        layer = keras.layers.MaxPooling1D(3, strides=2, padding="same", dtype=self.policy)
        return layer(inputs)

    def average_pool(self, inputs: Tensor) -> Tensor:
        """Apply 2x2 average-pooling; incomplete fields are left out."""
        return keras.layers.AveragePooling2D(2, dtype=self.policy)(inputs)

    def global_average(self, inputs: Tensor) -> Tensor:
        """Apply global average pooling per channel."""
        return keras.layers.GlobalAveragePooling2D(dtype=self.policy)(inputs)

    def _initializer(self, law: Law, name: str) -> keras.initializers.Initializer:
        sequence = np.random.SeedSequence([self.seed, zlib.crc32(name.encode())])
        own_seed = int(sequence.generate_state(1)[0])
        if law == "glorot-uniform":
            return keras.initializers.GlorotUniform(own_seed)
        return keras.initializers.HeNormal(own_seed)


class BatchNorm(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Batch normalisation as torch computes it, by TensorFlow's fused kernel.

    Keras 3 composes its layer from single operations, and keeps the biased variance. The fused
    kernel is quicker, and returns the unbiased variance that torch keeps. Running statistics are
    local to a replica while it trains and are averaged when they are read from outside, as in Keras
    2; Keras 3's cannot be updated under a strategy with several replicas.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Make the variables, named as Keras names them."""
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(shape=shape, name="gamma", initializer="ones", autocast=False)
        self.beta = self.add_weight(shape=shape, name="beta", initializer="zeros", autocast=False)
        self.moving_mean = _statistic("moving_mean", "zeros", shape)
        self.moving_variance = _statistic("moving_variance", "ones", shape)
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Normalise by the batch in training, else by the running statistics."""
        statistics = () if training else (self.moving_mean.value, self.moving_variance.value)
        shape = tf.shape(inputs)
        if inputs.shape.rank == 3:
            # The kernel reads images: a line is one of height 1.
            inputs = tf.expand_dims(inputs, 1)
        normal, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=self.gamma.value,
            offset=self.beta.value,
            mean=statistics[0] if statistics else [],
            variance=statistics[1] if statistics else [],
            epsilon=EPSILON,
            is_training=not statistics,
        )
        if training:
            _move(self.moving_mean, mean)
            _move(self.moving_variance, variance)
        return tf.reshape(normal, shape)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return input_shape


class Dropout(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Dropout without a variable for its random state.

    Keras 3 keeps the state in a variable that cannot be updated under a strategy with several
    replicas. This one draws from TensorFlow's generator, seeded by `tf.random.set_seed`.
    """

    def __init__(self, rate: float, *, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self._rate = rate

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Drop a share of the entries, and scale up the others, in training only."""
        return tf.nn.dropout(inputs, self._rate) if training else inputs

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return input_shape


def _statistic(name: str, start: str, shape: tuple[int | None, ...]) -> keras.Variable:
    return keras.Variable(
        start,
        shape=shape,
        dtype="float32",
        trainable=False,
        autocast=False,
        aggregation="mean",
        synchronization="on_read",
        name=name,
    )


def _move(statistic: keras.Variable, found: tf.Tensor) -> None:
    statistic.assign(KEPT_SHARE * statistic.value + (1 - KEPT_SHARE) * found)
