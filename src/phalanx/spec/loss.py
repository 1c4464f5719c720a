"""Describe the loss: what is minimised, and what its mean is taken over.

`LOSSES` is an open table: a kind names its implementation for each backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from phalanx.spec.base import Spec, Words, fault, name_only
from phalanx.spec.registry import Registry

IGNORED = -100
"""Label of positions that do not count, as in torch."""


@dataclass(frozen=True)
class LossKind:
    """Describe a loss function.

    Import paths are `package.module:function`, loaded where they are used.
    """

    name: str
    function: str
    """Takes outputs and targets, and `loss.args` by name; returns one loss per sample, the mean
    over the batch, or a sum and what it counts. The built-in ones take the spec instead of the
    arguments."""
    tensorflow: str | None = None
    """The same on TensorFlow's tensors."""
    of_values: bool = False
    """Whether outputs are values like the targets, so that there is no accuracy."""
    in_model: bool = False
    """Whether the network computes it: the function takes what the network returned."""


def _built_in(
    name: str, function: str, *, of_values: bool = False, in_model: bool = False
) -> LossKind:
    return LossKind(
        name,
        function=f"phalanx.engine.loss_functions:{function}",
        of_values=of_values,
        in_model=in_model,
    )


LOSSES: Registry[LossKind] = Registry(
    "loss",
    LossKind,
    group="phalanx.losses",
    built_in={
        "cross-entropy": LossKind(
            "cross-entropy",
            function="phalanx.engine.loss_functions:cross_entropy",
            tensorflow="phalanx.backends.tensorflow.loss:cross_entropy",
        ),
        "mse": LossKind(
            "mse",
            function="phalanx.engine.loss_functions:squared_error",
            tensorflow="phalanx.backends.tensorflow.loss:squared_error",
            of_values=True,
        ),
        "l1": _built_in("l1", "absolute_error", of_values=True),
        "huber": _built_in("huber", "huber", of_values=True),
        "bce": _built_in("bce", "binary_cross_entropy"),
        "model": _built_in("model", "loss_of_model", in_model=True),
    },
    adapt=lambda path, _: LossKind(path, function=path),
)

_CROSS_ENTROPY, _HUBER, _MODEL = "cross-entropy", "huber", "model"
_HOMES = {
    "label_smoothing": (_CROSS_ENTROPY,),
    "ignore": (_CROSS_ENTROPY, _MODEL),
    "delta": (_HUBER,),
    "shift": (_MODEL,),
}


class LossSpec(Spec):
    """Loss function: its mean over the global batch is minimised."""

    name: (
        Literal["cross-entropy", "mse", "l1", "huber", "bce", "model"]
        | Annotated[str, AfterValidator(LOSSES.checked_name), Words("package.module:function")]
    ) = "cross-entropy"
    """cross-entropy for classes (a label per sample, or per position: then the mean is over
    positions), mse, l1 and huber for numbers, bce (binary cross-entropy of logits) for several
    labels that are 0 or 1, model (the network returns its loss, as Hugging Face's do), or a
    function of outputs and targets."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of probability spread evenly over all classes; cross-entropy only."""
    ignore: Annotated[int, Field(ge=-(2**31), lt=2**31)] = IGNORED
    """Label of positions that do not count; cross-entropy and model."""
    delta: Annotated[float, Field(gt=0)] = 1.0
    """Error from which on huber is linear."""
    shift: bool = False
    """Of model: the network compares each position with the next label, as language models of
    Hugging Face do; first labels then do not count."""
    args: dict[str, JsonValue] = {}
    """Keyword arguments for a function of your own."""

    @model_validator(mode="after")
    def _has_effect(self) -> LossSpec:
        for field, homes in _HOMES.items():
            default = type(self).model_fields[field].default
            if getattr(self, field) != default and self.name not in homes:
                raise fault(
                    f"loss.{field} has no effect on '{self.name}'",
                    f"; it belongs to {' and '.join(homes)}",
                    at=(field,),
                )
        if self.args and self.name in LOSSES.built_in:
            raise fault(
                f"loss.args has no effect on '{self.name}'",
                "; it belongs to functions of your own",
                at=("args",),
            )
        return self

    @property
    def kind(self) -> LossKind:
        """Its entry in the table; imports a loss of another package."""
        return LOSSES.find(self.name)

    @property
    def is_built_in(self) -> bool:
        """Whether it comes with Phalanx."""
        return self.name in LOSSES.built_in

    @property
    def arguments(self) -> Mapping[str, object]:
        """Arguments of the function besides outputs and targets."""
        return {"spec": self} if self.is_built_in else self.args


LossField = Annotated[LossSpec, BeforeValidator(name_only)]
