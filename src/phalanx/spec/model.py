"""Describe the network: a built-in one with its settings, or one of another package.

`MODELS` is an open table: a kind names the builder for each framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    model_validator,
)

from phalanx.spec.base import ListOf, Spec, Whole, Words, fault, name_only
from phalanx.spec.registry import Registry

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class ModelKind:
    """Describe a network with settings that are validated.

    Import paths are `package.module:function`, loaded where they are used.
    """

    name: str
    build: str
    """Takes the settings, and `input_shape` and `num_classes` by name; returns an `nn.Module`."""
    keras: str | None = None
    """The twin: takes `seed` and `policy` (of precision) as well; returns a `keras.Model`."""
    takes_modalities: bool = False
    """Whether both take `modalities` too: what a packed row of several sensors consists of."""
    settings: type[Spec] | None = None
    """What `model.args` may hold, for networks of other packages."""


def _built_in(name: str, build: str, keras: str) -> ModelKind:
    return ModelKind(
        name, build=f"phalanx.model.{build}", keras=f"phalanx.backends.tensorflow.{keras}"
    )


MODELS: Registry[ModelKind] = Registry(
    "model",
    ModelKind,
    group="phalanx.models",
    built_in={
        "mlp": _built_in("mlp", "mlp:build_mlp", "networks:build_mlp"),
        "cnn": _built_in("cnn", "cnn:build_cnn", "networks:build_cnn"),
        "mnist-cnn": _built_in("mnist-cnn", "cnn:build_mnist_cnn", "networks:build_mnist_cnn"),
        "resnet": _built_in("resnet", "resnet:build_resnet", "networks:build_resnet"),
        "densenet": _built_in("densenet", "densenet:build_densenet", "networks:build_densenet"),
    },
)


class _Network(Spec):
    @property
    def user_args(self) -> Mapping[str, JsonValue] | None:
        """Arguments for a network of another package; None: it is built in."""
        return None


class MlpSpec(_Network):
    """Fully connected layers with ReLU."""

    name: Literal["mlp"] = "mlp"
    hidden: ListOf[Positive] = (300, 100)
    """Width of each hidden layer; on 28x28, [300, 100] has 266,610 parameters, [128] 101,770."""
    dropout: Share = 0.0
    """Share of units dropped after each hidden layer."""


class CnnSpec(_Network):
    """One convolution, max-pooling, one dense layer: 347,146 parameters on 28x28."""

    name: Literal["cnn"] = "cnn"
    filters: Positive = 32
    """Filters of the 3x3 convolution."""
    dense: Positive = 64
    """Width of the dense layer."""


class MnistCnnSpec(_Network):
    """Two convolutions, pooling, dense 128, two dropouts: 1,199,882 parameters on 28x28."""

    name: Literal["mnist-cnn"] = "mnist-cnn"
    dropout: bool = True
    """Dropout of 0.25 after pooling and 0.5 after the dense layer, as published."""


class ResnetSpec(_Network):
    """CIFAR-style residual network: depth 6n+2 in version 1, 9n+2 with bottlenecks in version 2."""

    name: Literal["resnet"] = "resnet"
    n: Positive = 8
    """Blocks per stage; version 1 with n = 8 has 763,882 parameters, version 2 with n = 6 is
    ResNet-56 v2."""
    version: Annotated[Literal[1, 2], Whole] = 1
    """1: convolution, normalise, activate; 2: pre-activation bottlenecks."""


class DensenetSpec(_Network):
    """DenseNet-BC of three dense blocks: depth 40, growth 12 has 180,778 parameters on 28x28."""

    name: Literal["densenet"] = "densenet"
    depth: Positive = 40
    """Depth by the usual count; must be 6k + 4."""
    growth: Positive = 12
    """Channels that each layer adds."""
    reduction: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of channels kept by each transition."""
    dropout: Share = 0.1
    """Dropout after each convolution of a dense layer."""

    @model_validator(mode="after")
    def _whole_blocks(self) -> DensenetSpec:
        nearest = max(10, 6 * round((self.depth - 4) / 6) + 4)
        if self.depth != nearest:
            raise fault(
                f"model.depth must be 6k + 4 for densenet, not {self.depth}",
                f"; the nearest is {nearest}",
                at=("depth",),
            )
        return self


class UserModelSpec(_Network):
    """A network of another package: a function that returns an `nn.Module`, or a `ModelKind`."""

    name: Annotated[str, AfterValidator(MODELS.checked_name), Words("package.module:function")]
    """`package.module:function`, importable from the directory where `phalanx` is called or from
    `python_path`."""
    args: dict[str, JsonValue] = {}
    """Keyword arguments for the function; `input_shape`, `num_classes` and `modalities` are added
    if it takes them. Settings of a `ModelKind`."""

    @property
    def user_args(self) -> Mapping[str, JsonValue] | None:
        """Arguments for a network of another package."""
        return self.args


def _model_tag(value: object) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if name in MODELS.built_in else "user"


ModelSpec = Annotated[
    Annotated[MlpSpec, Tag("mlp")]
    | Annotated[CnnSpec, Tag("cnn")]
    | Annotated[MnistCnnSpec, Tag("mnist-cnn")]
    | Annotated[ResnetSpec, Tag("resnet")]
    | Annotated[DensenetSpec, Tag("densenet")]
    | Annotated[UserModelSpec, Tag("user")],
    Discriminator(_model_tag),
    BeforeValidator(name_only),
]
