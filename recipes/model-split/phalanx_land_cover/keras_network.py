"""Build the Keras twin of `network` from the same plan."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from phalanx.backends.tensorflow.layers import LayerKit, Tensor
from phalanx.spec.modality import Modality, columns_of
from phalanx_land_cover.layout import BRANCHES, TRUNK, BranchPlan, check_rows, scaled
from phalanx_land_cover.settings import LandCoverSpec


def build_land_cover(
    spec: LandCoverSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    modalities: Sequence[Modality],
    seed: int,
    policy: str,
) -> keras.Model:
    """One branch per kind of sensor, and a trunk that joins them."""
    check_rows(spec, input_shape, num_classes, modalities)
    kit = LayerKit(seed, policy, convolutions="he-normal", dense="glorot-uniform")
    inputs = keras.Input(input_shape)
    columns = columns_of(modalities)
    images = {
        one.name: _image(inputs[:, columns[one.name]], one)
        for one in modalities
        if one.name in spec.modalities
    }
    ends = []
    for plan in BRANCHES:
        taken = [images[name] for name in plan.takes if name in images]
        if taken:
            ends.append(_branch(kit, _joined(taken), plan, spec))
    hidden = _joined(ends)
    for number, width in enumerate(TRUNK, start=1):
        hidden = _dense(kit, hidden, f"trunk.dense{number}.0", scaled(spec, width), spec)
    return keras.Model(inputs, kit.fully_connected("trunk.classes", spec.outputs)(hidden))


def _branch(kit: LayerKit, hidden: Tensor, plan: BranchPlan, spec: LandCoverSpec) -> Tensor:
    convolutions = 0
    for filters in plan.layers:
        if filters is None:
            hidden = kit.max_pool(hidden, whole=False)
            continue
        convolutions += 1
        name = f"{plan.name}.conv{convolutions}.0"
        hidden = kit.relu(kit.convolution(name, scaled(spec, filters), 3, padding=1)(hidden))
    rows = kit.flatten_by_channel(hidden)
    return _dense(kit, rows, f"{plan.name}.dense.1", scaled(spec, plan.embedding), spec)


def _dense(kit: LayerKit, hidden: Tensor, name: str, width: int, spec: LandCoverSpec) -> Tensor:
    active = kit.relu(kit.fully_connected(name, width)(hidden))
    return kit.dropout(f"{name}.drop", spec.dropout)(active)


def _image(rows: Tensor, modality: Modality) -> Tensor:
    """Columns that lie as (channels, height, width), as (height, width, channels)."""
    return keras.ops.transpose(keras.ops.reshape(rows, (-1, *modality.shape)), (0, 2, 3, 1))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else keras.ops.concatenate(list(parts), axis=-1)
