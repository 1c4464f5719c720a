"""Build the Keras network that a spec describes: the twin of a built-in model, or a user's.

A twin computes what the torch network of the same settings computes: equal weights give equal
logits, losses, gradients and running statistics, and fresh weights follow the same laws (drawn
from another generator, so their values differ). `tests/parity/test_twins.py` holds them together.
The TensorFlow roles call `build_model`; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

import keras

from phalanx.errors import SpecError
from phalanx.model.user import call_user_function, find_network, settings_of
from phalanx.spec.base import Spec
from phalanx.spec.modality import Modality
from phalanx.spec.model import MODELS, ModelKind, ModelSpec
from phalanx.spec.registry import load

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

    Equal arguments give equal weights in every process; those of a user's network follow from
    Keras' global seed. It takes images as (batch, height, width, channels) and returns logits in
    the format of the computation: widen them before the loss. bf16 computes in bfloat16 with
    float32 variables; a user's network decides for itself.

    Raises:
        SpecError: The network does not fit the input, or the user's function is not usable.
    """
    if num_classes < 1:
        raise SpecError(f"a model needs at least 1 output, not {num_classes}")
    offered: dict[str, object] = {"input_shape": input_shape, "num_classes": num_classes}
    if modalities:
        offered["modalities"] = tuple(modalities)
    own = {"seed": seed, "policy": _POLICIES[precision]}
    if spec.user_args is None:
        return _from_kind(MODELS.find(spec.name), spec, offered, own)
    found = find_network(spec.name)
    if isinstance(found, ModelKind):
        return _from_kind(found, settings_of(spec.name, found, spec.user_args), offered, own)
    keras.utils.set_random_seed(seed)
    return _from_function(spec.name, found, spec.user_args, offered)


def _from_kind(
    kind: ModelKind, settings: Spec, offered: Mapping[str, object], own: Mapping[str, object]
) -> keras.Model:
    if kind.keras is None:
        raise SpecError(
            f"model '{kind.name}' has no Keras twin; leave 'backend: tensorflow' out",
            model=kind.name,
        )
    build = cast("Callable[..., keras.Model]", load(kind.keras))
    if kind.takes_modalities:
        return build(settings, **{"modalities": (), **offered}, **own)
    return build(settings, **{key: offered[key] for key in ("input_shape", "num_classes")}, **own)


def _from_function(
    name: str,
    function: Callable[..., object],
    args: Mapping[str, object],
    offered: Mapping[str, object],
) -> keras.Model:
    model = call_user_function(name, function, args, offered)
    if not isinstance(model, keras.Model):
        raise SpecError(
            f"model '{name}' returned {type(model).__name__}; with 'backend: tensorflow' it "
            "must return a keras.Model",
            model=name,
        )
    if not model.built:
        input_shape = cast("tuple[int, ...]", offered["input_shape"])
        model.build((None, *input_shape))
    return model
