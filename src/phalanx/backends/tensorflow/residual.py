"""Keras twin of `phalanx.model.resnet`: both versions, block by block under the same names."""

from __future__ import annotations

import keras

from phalanx.backends.tensorflow.layers import LayerKit, Tensor
from phalanx.model.shape import image_shape
from phalanx.spec.model import ResnetSpec

FIRST_FILTERS = 16
NUM_STAGES = 3


def build_resnet(
    spec: ResnetSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build a stem, blocks, in version 2 a last normalisation, and a dense head."""
    image_shape(input_shape, model="resnet", min_pixels=4)
    kit = LayerKit(seed, policy, convolutions="he-normal", dense="he-normal")
    inputs = keras.Input(input_shape)
    hidden = kit.convolution("conv", FIRST_FILTERS, 3, padding=1)(inputs)
    hidden = kit.relu(kit.norm("norm")(hidden))
    if spec.version == 1:
        hidden = _basic_blocks(kit, hidden, spec.n)
    else:
        hidden = kit.relu(kit.norm("last_norm")(_bottleneck_blocks(kit, hidden, spec.n)))
    logits = kit.fully_connected("head", num_classes)(kit.global_average(hidden))
    return keras.Model(inputs, logits)


def _basic_blocks(kit: LayerKit, hidden: Tensor, n: int) -> Tensor:
    for index in range(NUM_STAGES * n):
        stage, block = divmod(index, n)
        hidden = _basic_block(
            kit,
            hidden,
            f"blocks.{index}",
            filters=FIRST_FILTERS * 2**stage,
            stride=2 if stage > 0 and block == 0 else 1,
        )
    return hidden


def _basic_block(kit: LayerKit, inputs: Tensor, name: str, *, filters: int, stride: int) -> Tensor:
    hidden = kit.convolution(f"{name}.conv1", filters, 3, stride=stride, padding=1)(inputs)
    hidden = kit.relu(kit.norm(f"{name}.norm1")(hidden))
    hidden = kit.convolution(f"{name}.conv2", filters, 3, padding=1)(hidden)
    residual = kit.norm(f"{name}.norm2")(hidden)
    return kit.relu(residual + _shortcut(kit, inputs, name, filters=filters, stride=stride))


def _bottleneck_blocks(kit: LayerKit, hidden: Tensor, n: int) -> Tensor:
    inner = FIRST_FILTERS
    for index in range(NUM_STAGES * n):
        stage, block = divmod(index, n)
        filters = inner * (4 if stage == 0 else 2)
        hidden = _bottleneck_block(
            kit,
            hidden,
            f"blocks.{index}",
            inner=inner,
            filters=filters,
            stride=2 if stage > 0 and block == 0 else 1,
        )
        if block == n - 1:
            inner = filters
    return hidden


def _bottleneck_block(
    kit: LayerKit, inputs: Tensor, name: str, *, inner: int, filters: int, stride: int
) -> Tensor:
    # The first block takes input that is normalised and active already.
    bare = name == "blocks.0"
    active = inputs if bare else kit.relu(kit.norm(f"{name}.norm1")(inputs))
    hidden = kit.convolution(f"{name}.conv1", inner, 1, stride=stride)(active)
    hidden = kit.relu(kit.norm(f"{name}.norm2")(hidden))
    hidden = kit.convolution(f"{name}.conv2", inner, 3, padding=1)(hidden)
    hidden = kit.relu(kit.norm(f"{name}.norm3")(hidden))
    residual = kit.convolution(f"{name}.conv3", filters, 1)(hidden)
    return residual + _shortcut(kit, inputs, name, filters=filters, stride=stride)


def _shortcut(kit: LayerKit, inputs: Tensor, name: str, *, filters: int, stride: int) -> Tensor:
    if inputs.shape[-1] == filters:
        return inputs
    return kit.convolution(f"{name}.shortcut", filters, 1, stride=stride)(inputs)
