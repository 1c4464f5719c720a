"""Which network: one of the built-in ones with its settings, or a function of the user's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    model_validator,
)

from phalanx.spec.base import ListOf, Spec, Whole, Words, fault, name_only

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class MlpSpec(Spec):
    """Fully connected layers with ReLU."""

    name: Literal["mlp"] = "mlp"
    hidden: ListOf[Positive] = (300, 100)
    """Width of each hidden layer; on 28x28, [300, 100] has 266,610 parameters, [128] 101,770."""
    dropout: Share = 0.0
    """Share of units dropped after each hidden layer."""


class CnnSpec(Spec):
    """One convolution, max-pooling, one dense layer: 347,146 parameters on 28x28."""

    name: Literal["cnn"] = "cnn"
    filters: Positive = 32
    """Filters of the 3x3 convolution."""
    dense: Positive = 64
    """Width of the dense layer."""


class MnistCnnSpec(Spec):
    """Two convolutions, pooling, dense 128, two dropouts: 1,199,882 parameters on 28x28."""

    name: Literal["mnist-cnn"] = "mnist-cnn"
    dropout: bool = True
    """Dropout of 0.25 after pooling and 0.5 after the dense layer, as published."""


class ResnetSpec(Spec):
    """CIFAR-style residual network: depth 6n+2 in version 1, 9n+2 with bottlenecks in version 2."""

    name: Literal["resnet"] = "resnet"
    n: Positive = 8
    """Blocks per stage; version 1 with n = 8 has 763,882 parameters, version 2 with n = 6 is
    ResNet-56 v2."""
    version: Annotated[Literal[1, 2], Whole] = 1
    """1: convolution, normalise, activate; 2: pre-activation bottlenecks."""


class DensenetSpec(Spec):
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


class RedshiftSpec(Spec):
    """Convolutions along a spectrum: 2,242,192 parameters on 1,780 bins with 800 classes."""

    name: Literal["redshift"] = "redshift"
    convolutions: Positive = 3
    """Convolutions, each followed by a pool that halves the length."""
    filters: Positive = 16
    """Filters of each convolution."""
    kernel: Positive = 8
    """Length of each filter, in bins."""
    batch_norm: bool = True
    """Normalise after each pool."""
    dense: Positive = 512
    """Width of the dense layer."""
    dropout: Share = 0.5
    """Share of units dropped before and after the dense layer."""


SensorName = Literal["hyperspectral", "lidar", "sar", "visible"]


class LandCoverSpec(Spec):
    """Three branches and a trunk: 10,723,028 parameters on the shapes of the data `land-cover`."""

    name: Literal["land-cover"] = "land-cover"
    modalities: ListOf[SensorName] = ("hyperspectral", "lidar", "sar", "visible")
    """What is read; a branch without a modality is left out. lidar and sar share a branch."""
    width: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Factor for the width of every layer but the last."""
    dropout: Share = 0.0
    """Share of units dropped after each dense layer but the last."""
    outputs: Positive = 20
    """Classes that can be told apart; the data may have fewer."""

    @model_validator(mode="after")
    def _some_modality(self) -> LandCoverSpec:
        if not self.modalities or len(set(self.modalities)) < len(self.modalities):
            raise fault(
                "model.modalities takes at least one name, each once",
                ", such as [hyperspectral, lidar]",
                at=("modalities",),
            )
        return self


class UserModelSpec(Spec):
    """A function of the user's that returns an `nn.Module`."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"),
        Words("package.module:function"),
    ]
    """`package.module:function`, importable from the directory where `phalanx` is called."""
    args: dict[str, JsonValue] = {}
    """Keyword arguments for the function; `input_shape`, `num_classes` and `modalities` are added
    if it takes them."""


BUILT_IN_MODELS = ("mlp", "cnn", "mnist-cnn", "resnet", "densenet", "redshift", "land-cover")


def _model_tag(value: object) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if name in BUILT_IN_MODELS else "user"


ModelSpec = Annotated[
    Annotated[MlpSpec, Tag("mlp")]
    | Annotated[CnnSpec, Tag("cnn")]
    | Annotated[MnistCnnSpec, Tag("mnist-cnn")]
    | Annotated[ResnetSpec, Tag("resnet")]
    | Annotated[DensenetSpec, Tag("densenet")]
    | Annotated[RedshiftSpec, Tag("redshift")]
    | Annotated[LandCoverSpec, Tag("land-cover")]
    | Annotated[UserModelSpec, Tag("user")],
    Discriminator(_model_tag),
    BeforeValidator(name_only),
]
