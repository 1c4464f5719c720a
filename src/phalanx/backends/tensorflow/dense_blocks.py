"""Keras twin of `phalanx.model.densenet`."""

from __future__ import annotations

import keras

from phalanx.backends.tensorflow.layers import LayerKit, Tensor
from phalanx.model.shape import image_shape
from phalanx.spec.model import DensenetSpec

NUM_BLOCKS = 3


def build_densenet(
    spec: DensenetSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build a convolution, dense blocks with transitions between them, and a dense head."""
    image_shape(input_shape, model="densenet", min_pixels=4)
    kit = LayerKit(seed, policy, convolutions="he-normal", dense="glorot-uniform")
    inputs = keras.Input(input_shape)
    hidden = kit.convolution("conv", 2 * spec.growth, 3, padding=1, bias=False)(inputs)
    position = 0
    for block in range(NUM_BLOCKS):
        for _ in range((spec.depth - 4) // (2 * NUM_BLOCKS)):
            hidden = _dense_layer(kit, hidden, f"body.{position}", spec)
            position += 1
        if block < NUM_BLOCKS - 1:
            hidden = _transition(kit, hidden, f"body.{position}", spec.reduction)
            position += 1
    hidden = kit.global_average(kit.relu(kit.norm("norm")(hidden)))
    return keras.Model(inputs, kit.fully_connected("head", num_classes)(hidden))


def _dense_layer(kit: LayerKit, inputs: Tensor, name: str, spec: DensenetSpec) -> Tensor:
    hidden = kit.relu(kit.norm(f"{name}.norm1")(inputs))
    hidden = kit.convolution(f"{name}.conv1", 4 * spec.growth, 1, bias=False)(hidden)
    hidden = kit.dropout(f"{name}.drop1", spec.dropout)(hidden)
    hidden = kit.relu(kit.norm(f"{name}.norm2")(hidden))
    hidden = kit.convolution(f"{name}.conv2", spec.growth, 3, padding=1, bias=False)(hidden)
    hidden = kit.dropout(f"{name}.drop2", spec.dropout)(hidden)
    return keras.ops.concatenate((inputs, hidden), axis=-1)


def _transition(kit: LayerKit, inputs: Tensor, name: str, reduction: float) -> Tensor:
    kept = max(1, int(inputs.shape[-1] * reduction))
    hidden = kit.relu(kit.norm(f"{name}.norm")(inputs))
    return kit.average_pool(kit.convolution(f"{name}.conv", kept, 1, bias=False)(hidden))
