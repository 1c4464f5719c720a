"""Name to network: the one table of built-in models, and `build_model`.

A network is imported when it is first asked for. What the settings of a network are is said in
`phalanx.spec.model`; what it computes is said in its own module. The worker calls `build_model`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

import torch
from torch import nn

from phalanx.errors import SpecError
from phalanx.model.user import build_user_model
from phalanx.spec.model import ModelSpec, UserModelSpec

BUILDERS = {
    "mlp": "phalanx.model.mlp:build_mlp",
    "cnn": "phalanx.model.cnn:build_cnn",
    "mnist-cnn": "phalanx.model.cnn:build_mnist_cnn",
    "resnet": "phalanx.model.resnet:build_resnet",
    "densenet": "phalanx.model.densenet:build_densenet",
}
"""Every built-in network: its name in a job file, and the function that builds it."""


def build_model(
    spec: ModelSpec, *, input_shape: tuple[int, ...], num_classes: int, seed: int
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

    Raises:
        SpecError: The network does not fit the input, or the user's function is not usable.
    """
    if num_classes < 1:
        raise SpecError(f"a model needs at least 1 output, not {num_classes}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(spec, UserModelSpec):
            return build_user_model(spec, input_shape=input_shape, num_classes=num_classes)
        module_name, _, function_name = BUILDERS[spec.name].partition(":")
        builder = cast(
            "Callable[..., nn.Module]", getattr(import_module(module_name), function_name)
        )
        return builder(spec, input_shape=input_shape, num_classes=num_classes)
