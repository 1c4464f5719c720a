"""How parameters move: optimiser, learning-rate schedule, loss, early stopping."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, fault, name_only

NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class _Optimizer(Spec):
    weight_decay: NonNegative = 0.0
    """Pull towards zero in the update rule: added to the gradient; adamw decouples it."""
    l2: NonNegative = 0.0
    """L2 regulariser on kernels (not on biases or normalisation): l2 · Σ w², reported apart from
    the loss."""
    clip_norm: PositiveFloat | None = None
    """Scale the whole gradient down to this norm if it is longer."""


class SgdSpec(_Optimizer):
    """Stochastic gradient descent."""

    name: Literal["sgd"] = "sgd"
    lr: PositiveFloat = 0.05
    """Peak learning rate."""
    momentum: Decay = 0.0
    """Share of the previous update that is kept."""
    nesterov: bool = False
    """Look-ahead form of momentum."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdSpec:
        if self.nesterov and self.momentum == 0:
            raise fault(
                "optimizer.nesterov needs a momentum above 0", ", such as 0.9", at=("nesterov",)
            )
        return self


class AdagradSpec(_Optimizer):
    """Per-parameter rates from the sum of squared gradients."""

    name: Literal["adagrad"] = "adagrad"
    lr: PositiveFloat = 0.01
    """Peak learning rate."""
    eps: PositiveFloat = 1e-10
    """Keeps the division finite."""


class AdadeltaSpec(_Optimizer):
    """Per-parameter rates from running averages."""

    name: Literal["adadelta"] = "adadelta"
    lr: PositiveFloat = 1.0
    """Peak learning rate."""
    rho: Decay = 0.95
    """Decay of the running averages."""
    eps: PositiveFloat = 1e-6
    """Keeps the division finite."""


class _AdamFamily(_Optimizer):
    lr: PositiveFloat = 0.001
    """Peak learning rate."""
    betas: ListOf[Decay] = (0.9, 0.999)
    """Decay of the first and second moment."""
    eps: PositiveFloat = 1e-8
    """Keeps the division finite."""

    @model_validator(mode="after")
    def _two_betas(self) -> _AdamFamily:
        if len(self.betas) != 2:
            raise fault(
                f"optimizer.betas takes two numbers, not {len(self.betas)}",
                "; such as [0.9, 0.999]",
                at=("betas",),
            )
        return self


class AdamSpec(_AdamFamily):
    """Adam."""

    name: Literal["adam"] = "adam"


class AdamwSpec(_AdamFamily):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""


OptimizerSpec = Annotated[
    Annotated[
        SgdSpec | AdagradSpec | AdadeltaSpec | AdamSpec | AdamwSpec, Field(discriminator="name")
    ],
    BeforeValidator(name_only),
]


class _Schedule(Spec):
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all samples over which the rate climbs linearly from `warmup_from` times the
    peak."""
    warmup_from: Share = 0.1
    """Where the climb starts, as a share of the peak rate."""


class ConstantSpec(_Schedule):
    """The peak rate throughout."""

    name: Literal["constant"] = "constant"


class MilestonesSpec(_Schedule):
    """Multiply the rate by a factor at chosen moments."""

    name: Literal["milestones"] = "milestones"
    at: ListOf[Annotated[float, Field(gt=0, lt=1)]] = ()
    """Moments as shares of all samples, such as [0.5, 0.75]."""
    at_epochs: ListOf[PositiveFloat] = ()
    """Moments as epochs, such as [80, 130]; give `at` or this."""
    factor: Share = 0.1
    """What the rate is multiplied by at each moment."""

    @model_validator(mode="after")
    def _one_kind_of_moment(self) -> MilestonesSpec:
        if bool(self.at) == bool(self.at_epochs):
            raise fault(
                "schedule 'milestones' takes exactly one of at and at_epochs",
                ", such as {at: [0.5, 0.75]} or {at_epochs: [80, 130]}",
            )
        moments, key = (self.at, "at") if self.at else (self.at_epochs, "at_epochs")
        if list(moments) != sorted(set(moments)):
            raise fault(f"schedule.{key} must rise, not {list(moments)}", at=(key,))
        return self


class CosineSpec(_Schedule):
    """Half a cosine from the peak to `floor` times the peak."""

    name: Literal["cosine"] = "cosine"
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where the curve ends, as a share of the peak rate."""


ScheduleSpec = Annotated[
    Annotated[ConstantSpec | MilestonesSpec | CosineSpec, Field(discriminator="name")],
    BeforeValidator(name_only),
]


class LossSpec(Spec):
    """What is minimised, as a mean over samples."""

    name: Literal["cross-entropy", "mse"] = "cross-entropy"
    """cross-entropy for classes, mse (mean squared error) for numbers."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of probability spread evenly over all classes."""


LossField = Annotated[LossSpec, BeforeValidator(name_only)]


class BarSpec(Spec):
    """What validation must have come to after a certain epoch."""

    epoch: Annotated[int, Field(gt=0)]
    """Measured after this many epochs."""
    value: float
    """A loss of at most, or an accuracy of at least this."""


class EarlyStopSpec(Spec):
    """End the run when validation stops improving, or has not come far enough."""

    monitor: Literal["val_loss", "val_accuracy"] = "val_loss"
    """What must improve."""
    patience: Annotated[int, Field(gt=0)] | None = 3
    """Epochs without improvement that are tolerated; null: any number."""
    min_delta: NonNegative = 0.0
    """Improvements up to this size do not count."""
    bar: BarSpec | None = None
    """End after one epoch unless a value is reached then, for searches; null: no such bar."""

    @model_validator(mode="after")
    def _has_effect(self) -> EarlyStopSpec:
        if self.patience is None and self.bar is None:
            raise fault(
                "early_stop without patience needs a bar",
                ", such as {epoch: 10, value: 0.5}",
                at=("patience",),
            )
        return self
