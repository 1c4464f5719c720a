"""The layers that the twins are made of, each meaning what torch's layer of that kind means.

Keras' own defaults differ from torch's in three places that change numbers: batch normalisation
(here a layer of our own), dropout (likewise) and the padding of strided convolutions (here an
explicit frame of zeros). Layers are named by their path in the torch network, by which `weights`
finds the counterpart of a variable. Called by the network modules; the loop never sees this.
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
    """Makes the layers of one network.

    Attributes:
        seed: Decides, with a layer's name, its initial weights; no order of creation matters.
        policy: Keras' name of the number format: float32 or mixed_bfloat16.
        convolutions: How kernels of convolutions start.
        dense: How kernels of dense layers start.
    """

    seed: int
    policy: str
    convolutions: Law
    dense: Law

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
        """A convolution that sees `padding` zeros on every side of the image."""
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
        """A convolution along a line that keeps its length; the longer margin is on the right."""
        return keras.layers.Conv1D(  # type: ignore[no-any-return]  # keras has no types
            filters,
            size,
            padding="same",
            kernel_initializer=self._initializer(self.convolutions, name),
            name=name,
            dtype=self.policy,
        )

    def fully_connected(self, name: str, width: int) -> Layer:
        """A dense layer without activation."""
        return keras.layers.Dense(  # type: ignore[no-any-return]  # keras has no types
            width,
            kernel_initializer=self._initializer(self.dense, name),
            name=name,
            dtype=self.policy,
        )

    def norm(self, name: str) -> Layer:
        """Batch normalisation over all but the last axis."""
        return BatchNorm(name=name, dtype=self.policy)

    def dropout(self, name: str, rate: float) -> Layer:
        """Dropout; without a rate, nothing at all."""
        if rate == 0:
            return lambda inputs: inputs
        return Dropout(rate, name=name, dtype=self.policy)

    def relu(self, inputs: Tensor) -> Tensor:
        """What is above zero."""
        return keras.ops.relu(inputs)

    def flatten(self, inputs: Tensor) -> Tensor:
        """One row per sample, pixels in the order height, width, channel."""
        return keras.layers.Flatten(dtype=self.policy)(inputs)

    def flatten_by_channel(self, inputs: Tensor) -> Tensor:
        """One row per sample, channel by channel, as torch's own layer flattens."""
        channel, *others = len(inputs.shape) - 1, *range(1, len(inputs.shape) - 1)
        turned = keras.layers.Permute((channel, *others), dtype=self.policy)(inputs)
        return self.flatten(turned)

    def max_pool(self, inputs: Tensor, *, whole: bool = True) -> Tensor:
        """The largest of each 2x2 field; what does not fill a field counts unless `whole`."""
        padding = "valid" if whole else "same"
        return keras.layers.MaxPooling2D(2, padding=padding, dtype=self.policy)(inputs)

    def line_pool(self, inputs: Tensor) -> Tensor:
        """The largest of each three neighbours, at every second place."""
        layer = keras.layers.MaxPooling1D(3, strides=2, padding="same", dtype=self.policy)
        return layer(inputs)

    def average_pool(self, inputs: Tensor) -> Tensor:
        """The mean of each 2x2 field; what does not fill a field is left out."""
        return keras.layers.AveragePooling2D(2, dtype=self.policy)(inputs)

    def global_average(self, inputs: Tensor) -> Tensor:
        """The mean of each channel."""
        return keras.layers.GlobalAveragePooling2D(dtype=self.policy)(inputs)

    def _initializer(self, law: Law, name: str) -> keras.initializers.Initializer:
        sequence = np.random.SeedSequence([self.seed, zlib.crc32(name.encode())])
        own_seed = int(sequence.generate_state(1)[0])
        if law == "glorot-uniform":
            return keras.initializers.GlorotUniform(own_seed)
        return keras.initializers.HeNormal(own_seed)


class BatchNorm(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Batch normalisation as torch computes it, by TensorFlow's fused kernel.

    Keras 3 has its own from single operations, and keeps the biased variance. The fused kernel is
    quicker, and hands out the unbiased variance that torch keeps. Running statistics are local to
    a replica while it trains and are averaged when they are read from outside, as Keras 2 had it;
    Keras 3's own cannot be updated under a strategy with several replicas.
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
        """As it came."""
        return input_shape


class Dropout(keras.layers.Layer):  # type: ignore[misc]  # keras has no types
    """Dropout without a variable for its random state.

    Keras 3 keeps the state in a variable that cannot be updated under a strategy with several
    replicas. This one draws from TensorFlow's own generator: `tf.random.set_seed` decides.
    """

    def __init__(self, rate: float, *, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self._rate = rate

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Drop a share of the entries, and enlarge the others, in training only."""
        return tf.nn.dropout(inputs, self._rate) if training else inputs

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """As it came."""
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
