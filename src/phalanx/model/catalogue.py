"""Name to network: the one table of built-in models, and `build_model`.

A network is imported when it is first asked for. What the settings of a network are is said in
`phalanx.spec.model`; what it computes is said in its own module. The worker calls `build_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

import torch
from torch import nn

from phalanx.errors import SpecError
from phalanx.model.user import call_user_function
from phalanx.spec.modality import Modality
from phalanx.spec.model import LandCoverSpec, ModelSpec, UserModelSpec

BUILDERS = {
    "mlp": "phalanx.model.mlp:build_mlp",
    "cnn": "phalanx.model.cnn:build_cnn",
    "mnist-cnn": "phalanx.model.cnn:build_mnist_cnn",
    "resnet": "phalanx.model.resnet:build_resnet",
    "densenet": "phalanx.model.densenet:build_densenet",
    "redshift": "phalanx.model.redshift:build_redshift",
    "land-cover": "phalanx.model.land_cover:build_land_cover",
}
"""Every built-in network: its name in a job file, and the function that builds it."""


def build_model(
    spec: ModelSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    modalities: Sequence[Modality] = (),
) -> nn.Module:
    """Build a network with fresh weights that depend on `seed` alone.

    Equal arguments give bit-equal weights in every process, so workers start alike without
    exchanging anything. The global random state of torch is left as it was found.

    Args:
        spec: Which network, with its settings.
        input_shape: One sample without the batch axis: (height, width, channels) or (features,).
            Images are handed to the network as (batch, channels, height, width).
        num_classes: Width of the output; the network returns logits.
        seed: Decides every initial weight.
        modalities: What a packed row of several sensors consists of; empty: it is of one piece.

    Raises:
        SpecError: The network does not fit the input, or the user's function is not usable.
    """
    if num_classes < 1:
        raise SpecError(f"a model needs at least 1 output, not {num_classes}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(spec, UserModelSpec):
            return _user_model(
                spec, input_shape=input_shape, num_classes=num_classes, modalities=modalities
            )
        module_name, _, function_name = BUILDERS[spec.name].partition(":")
        builder = cast(
            "Callable[..., nn.Module]", getattr(import_module(module_name), function_name)
        )
        shape: dict[str, object] = {"input_shape": input_shape, "num_classes": num_classes}
        if isinstance(spec, LandCoverSpec):
            shape["modalities"] = modalities
        return builder(spec, **shape)


def _user_model(
    spec: UserModelSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    modalities: Sequence[Modality],
) -> nn.Module:
    model = call_user_function(
        spec, input_shape=input_shape, num_classes=num_classes, modalities=modalities
    )
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"model '{spec.name}' returned {type(model).__name__}; it must return an nn.Module",
            model=spec.name,
        )
    return model
