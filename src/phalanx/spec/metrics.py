"""Describe metrics of a network's outputs, and which figure of validation decides what is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, JsonValue, model_validator

from phalanx.spec.base import Spec, Words, fault, name_only
from phalanx.spec.names import did_you_mean
from phalanx.spec.registry import IMPORT_PATH

PERPLEXITY = "perplexity"
Direction = Literal["min", "max"]
_LOW_IS_GOOD = frozenset({"loss", PERPLEXITY, "mae", "rmse"})
_ALWAYS = ("loss", "accuracy", "mae", "rmse", "r2")


def _known(name: str) -> str:
    if name == PERPLEXITY or IMPORT_PATH.match(name):
        return name
    raise fault(
        f"unknown metric '{name}'{did_you_mean(name, (PERPLEXITY,))}",
        " (known: perplexity; or package.module:name; metrics of classes belong to data.metrics)",
    )


class MetricSpec(Spec):
    """A metric of outputs and targets, measured on the validation and test parts."""

    name: Annotated[str, AfterValidator(_known), Words("perplexity or package.module:name")]
    """perplexity (exp of the loss), or a function of outputs and targets, or a class with `update`
    and `compute`, as those of torchmetrics have; records use its last word."""
    args: dict[str, JsonValue] = {}
    """Keyword arguments of the function or class."""
    gather: bool = False
    """Call a function once with the outputs of all samples, because its value is no mean over
    batches; classes get all of them anyway unless their states add up."""
    mode: Literal["auto", "min", "max"] = "auto"
    """What is better; auto: low for perplexity, high for others."""

    @model_validator(mode="after")
    def _has_effect(self) -> MetricSpec:
        if self.name == PERPLEXITY and (self.args or self.gather):
            key = "args" if self.args else "gather"
            raise fault(f"metrics: {key} has no effect on perplexity", at=(key,))
        return self

    @property
    def label(self) -> str:
        """Name in records and reports."""
        return self.name.rpartition(":")[2]


MetricField = Annotated[MetricSpec, BeforeValidator(name_only)]


def _of_validation(name: str) -> str:
    if not name.startswith("val_"):
        raise fault(f"'{name}' is no figure of validation", ", such as val_loss or val_accuracy")
    return name


Monitor = Annotated[
    str, AfterValidator(_of_validation), Words("val_loss, val_accuracy or val_ and a metric")
]
"""Figure of the validation part: `val_` and loss, accuracy or the name of a metric."""


def direction_of(monitor: str, metrics: Sequence[MetricSpec]) -> Direction:
    """Return whether low or high is good."""
    name = monitor.removeprefix("val_")
    for one in metrics:
        if one.label == name and one.mode != "auto":
            return one.mode
    return "min" if name in _LOW_IS_GOOD else "max"


def check_monitor(
    monitor: str, metrics: Sequence[MetricSpec], of_classes: Sequence[str], *, at: tuple[str, ...]
) -> None:
    """Refuse a figure that nothing measures; `of_classes` are metrics of the data."""
    name = monitor.removeprefix("val_")
    known = [*_ALWAYS, *(one.label for one in metrics), *of_classes]
    if name not in known:
        names = [f"val_{one}" for one in dict.fromkeys(known)]
        raise fault(
            f"{'.'.join(at)}: nothing measures '{monitor}'{did_you_mean(monitor, names)}",
            f" (known: {', '.join(names)})",
            at=at,
        )
