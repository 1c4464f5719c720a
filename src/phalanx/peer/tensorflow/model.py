"""Name to Keras network: the twin of every built-in model, and the user's own.

A twin computes what the torch network of the same settings computes: equal weights give equal
logits, losses, gradients and running statistics, and fresh weights follow the same laws (drawn
from another generator, so their values differ). `tests/parity/test_twins.py` holds them together.
The TensorFlow roles call `build_model`; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Literal, cast

import keras

from phalanx.errors import SpecError
from phalanx.model.user import call_user_function
from phalanx.spec.modality import Modality
from phalanx.spec.model import LandCoverSpec, ModelSpec, UserModelSpec

BUILDERS = {
    "mlp": "phalanx.peer.tensorflow.perceptron:build_mlp",
    "cnn": "phalanx.peer.tensorflow.convolutional:build_cnn",
    "mnist-cnn": "phalanx.peer.tensorflow.convolutional:build_mnist_cnn",
    "resnet": "phalanx.peer.tensorflow.residual:build_resnet",
    "densenet": "phalanx.peer.tensorflow.dense_blocks:build_densenet",
    "redshift": "phalanx.peer.tensorflow.spectral:build_redshift",
    "land-cover": "phalanx.peer.tensorflow.branched:build_land_cover",
}
"""Every built-in network: its name in a job file, and the function that builds its twin."""

_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}


def build_model(
    spec: ModelSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    precision: Literal["fp32", "bf16"] = "fp32",
    modalities: Sequence[Modality] = (),
) -> keras.Model:
    """Build a Keras network with fresh weights; call it within the strategy's scope.

    Equal arguments give equal weights in every process. It takes images as (batch, height, width,
    channels) and returns logits in the format of the computation: widen them before the loss.

    Args:
        spec: Which network, with its settings.
        input_shape: One sample without the batch axis: (height, width, channels) or (features,).
        num_classes: Width of the output.
        seed: Decides every initial weight; of a user's own network through Keras' global seed.
        precision: bf16 computes in bfloat16 with float32 variables; the user's own network decides
            for itself.
        modalities: What a packed row of several sensors consists of; empty: it is of one piece.

    Raises:
        SpecError: The network does not fit the input, or the user's function is not usable.
    """
    if num_classes < 1:
        raise SpecError(f"a model needs at least 1 output, not {num_classes}")
    if isinstance(spec, UserModelSpec):
        keras.utils.set_random_seed(seed)
        return _user_model(
            spec, input_shape=input_shape, num_classes=num_classes, modalities=modalities
        )
    module_name, _, function_name = BUILDERS[spec.name].partition(":")
    builder = cast("Callable[..., keras.Model]", getattr(import_module(module_name), function_name))
    shape: dict[str, object] = {"input_shape": input_shape, "num_classes": num_classes}
    if isinstance(spec, LandCoverSpec):
        shape["modalities"] = modalities
    return builder(spec, **shape, seed=seed, policy=_POLICIES[precision])


def _user_model(
    spec: UserModelSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    modalities: Sequence[Modality],
) -> keras.Model:
    model = call_user_function(
        spec, input_shape=input_shape, num_classes=num_classes, modalities=modalities
    )
    if not isinstance(model, keras.Model):
        raise SpecError(
            f"model '{spec.name}' returned {type(model).__name__}; with 'backend: tensorflow' it "
            "must return a keras.Model",
            model=spec.name,
        )
    if not model.built:
        model.build((None, *input_shape))
    return model
