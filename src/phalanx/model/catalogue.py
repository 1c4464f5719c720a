"""Build the network that a spec describes; called by the worker.

A network is imported on first use. Its settings are documented in `phalanx.spec.model`, with the
table of networks; its computation in its module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import nn

from phalanx.errors import SpecError
from phalanx.model.user import call_user_function, find_network, settings_of
from phalanx.spec.base import Spec
from phalanx.spec.fields import InputField
from phalanx.spec.modality import Modality
from phalanx.spec.model import MODELS, ModelKind, ModelSpec
from phalanx.spec.registry import load


def build_model(
    spec: ModelSpec,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    modalities: Sequence[Modality] = (),
    fields: Sequence[InputField] = (),
) -> nn.Module:
    """Build a network with fresh weights that depend on `seed` alone; it returns logits.

    Equal arguments give bit-equal weights in every process, so workers start alike without
    exchanging anything. The global random state of torch is left as it was found. `input_shape` is
    (height, width, channels), which the network gets as (batch, channels, height, width), or
    (features,). Samples of several inputs have `fields` instead, of which a user's function gets
    the shapes as `input_shapes`.

    Raises:
        SpecError: The network does not fit the input, or the user's function is not usable.
    """
    if num_classes < 1:
        raise SpecError(f"a model needs at least 1 output, not {num_classes}")
    offered: dict[str, object] = {"num_classes": num_classes}
    if fields:
        if spec.user_args is None:
            names = ", ".join(f"'{field.name}'" for field in fields)
            raise SpecError(
                f"model '{spec.name}' takes one input, and samples have {names}; name a network "
                "of your own"
            )
        offered["input_shapes"] = {field.name: field.shape for field in fields}
    else:
        offered["input_shape"] = input_shape
    if modalities:
        offered["modalities"] = tuple(modalities)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if spec.user_args is None:
            return _from_kind(MODELS.find(spec.name), spec, offered)
        return _from_outside(spec.name, spec.user_args, offered)


def _from_kind(kind: ModelKind, settings: Spec, offered: Mapping[str, object]) -> nn.Module:
    build = cast("Callable[..., nn.Module]", load(kind.build))
    if kind.takes_modalities:
        return build(settings, **{"modalities": (), **offered})
    return build(settings, **{key: one for key, one in offered.items() if key != "modalities"})


def _from_outside(
    name: str, args: Mapping[str, object], offered: Mapping[str, object]
) -> nn.Module:
    found = find_network(name)
    if isinstance(found, ModelKind):
        return _from_kind(found, settings_of(name, found, args), offered)
    model = call_user_function(name, found, args, offered)
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"model '{name}' returned {type(model).__name__}; it must return an nn.Module",
            model=name,
        )
    return model
