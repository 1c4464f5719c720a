"""Keras twins of the built-in networks: `model.mlp`, `cnn`, `densenet` and `resnet`.

Layers have the paths of their torch counterparts as names; `model` builds one of these.
"""

from __future__ import annotations

import keras

from phalanx.backends.tensorflow.layers import LayerKit, Tensor
from phalanx.model.shape import image_shape
from phalanx.spec.model import CnnSpec, DensenetSpec, MlpSpec, MnistCnnSpec, ResnetSpec

NUM_BLOCKS = 3
FIRST_FILTERS = 16
NUM_STAGES = 3


def build_mlp(
    spec: MlpSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build a flattening layer, then dense layers; the last one gives logits."""
    kit = LayerKit(seed, policy)
    inputs = keras.Input(input_shape)
    hidden = kit.flatten(inputs)
    position = 0
    for width in spec.hidden:
        hidden = kit.relu(kit.fully_connected(f"layers.{position}", width)(hidden))
        hidden = kit.dropout(f"layers.{position + 2}", spec.dropout)(hidden)
        position += 3 if spec.dropout > 0 else 2
    return keras.Model(inputs, kit.fully_connected(f"layers.{position}", num_classes)(hidden))


def build_cnn(
    spec: CnnSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build conv 3x3, max-pool 2, dense, logits."""
    image_shape(input_shape, model="cnn", min_pixels=4)
    kit = LayerKit(seed, policy)
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
    kit = LayerKit(seed, policy)
    inputs = keras.Input(input_shape)
    hidden = kit.relu(kit.convolution("features.0", 32, 3)(inputs))
    hidden = kit.relu(kit.convolution("features.2", 64, 3)(hidden))
    hidden = kit.dropout("features.5", early)(kit.max_pool(hidden))
    hidden = kit.relu(kit.fully_connected("classifier.0", 128)(kit.flatten(hidden)))
    hidden = kit.dropout("classifier.2", late)(hidden)
    return keras.Model(inputs, kit.fully_connected("classifier.3", num_classes)(hidden))


def build_densenet(
    spec: DensenetSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int, policy: str
) -> keras.Model:
    """Build a convolution, dense blocks with transitions between them, and a dense head."""
    image_shape(input_shape, model="densenet", min_pixels=4)
    kit = LayerKit(seed, policy, convolutions="he-normal")
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
        stride = 2 if stage > 0 and block == 0 else 1
        hidden = _basic_block(kit, hidden, f"blocks.{index}", FIRST_FILTERS * 2**stage, stride)
    return hidden


def _basic_block(kit: LayerKit, inputs: Tensor, name: str, filters: int, stride: int) -> Tensor:
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
        stride = 2 if stage > 0 and block == 0 else 1
        name = f"blocks.{index}"
        hidden = _bottleneck_block(kit, hidden, name, inner=inner, filters=filters, stride=stride)
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
