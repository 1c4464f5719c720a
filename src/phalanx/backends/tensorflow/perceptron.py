"""Keras twin of `phalanx.model.mlp`."""

from __future__ import annotations

import keras

from phalanx.backends.tensorflow.layers import LayerKit
from phalanx.spec.model import MlpSpec


def build_mlp(
    spec: MlpSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build a flattening layer, then dense layers; the last one gives logits."""
    kit = LayerKit(seed, policy, convolutions="glorot-uniform", dense="glorot-uniform")
    inputs = keras.Input(input_shape)
    hidden = kit.flatten(inputs)
    position = 0
    for width in spec.hidden:
        hidden = kit.relu(kit.fully_connected(f"layers.{position}", width)(hidden))
        hidden = kit.dropout(f"layers.{position + 2}", spec.dropout)(hidden)
        position += 3 if spec.dropout > 0 else 2
    return keras.Model(inputs, kit.fully_connected(f"layers.{position}", num_classes)(hidden))
