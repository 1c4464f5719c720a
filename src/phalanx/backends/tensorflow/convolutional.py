"""Keras twins of `phalanx.model.cnn`: `cnn` and `mnist-cnn`."""

from __future__ import annotations

import keras

from phalanx.backends.tensorflow.layers import LayerKit
from phalanx.model.shape import image_shape
from phalanx.spec.model import CnnSpec, MnistCnnSpec


def build_cnn(
    spec: CnnSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build conv 3x3, max-pool 2, dense, logits."""
    image_shape(input_shape, model="cnn", min_pixels=4)
    kit = _kit(seed, policy)
    inputs = keras.Input(input_shape)
    hidden = kit.relu(kit.convolution("features.0", spec.filters, 3)(inputs))
    hidden = kit.flatten(kit.max_pool(hidden))
    hidden = kit.relu(kit.fully_connected("classifier.0", spec.dense)(hidden))
    return keras.Model(inputs, kit.fully_connected("classifier.2", num_classes)(hidden))


def build_mnist_cnn(
    spec: MnistCnnSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build two convolutions, pooling, dropout, dense 128, dropout, logits."""
    image_shape(input_shape, model="mnist-cnn", min_pixels=6)
    early, late = (0.25, 0.5) if spec.dropout else (0.0, 0.0)
    kit = _kit(seed, policy)
    inputs = keras.Input(input_shape)
    hidden = kit.relu(kit.convolution("features.0", 32, 3)(inputs))
    hidden = kit.relu(kit.convolution("features.2", 64, 3)(hidden))
    hidden = kit.dropout("features.5", early)(kit.max_pool(hidden))
    hidden = kit.relu(kit.fully_connected("classifier.0", 128)(kit.flatten(hidden)))
    hidden = kit.dropout("classifier.2", late)(hidden)
    return keras.Model(inputs, kit.fully_connected("classifier.3", num_classes)(hidden))


def _kit(seed: int, policy: str) -> LayerKit:
    return LayerKit(seed, policy, convolutions="glorot-uniform", dense="glorot-uniform")
