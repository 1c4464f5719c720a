"""Describe optimiser and early stopping.

`OPTIMIZERS` is an open table: a kind names its implementation for each backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, fault, name_only
from phalanx.spec.metrics import Monitor
from phalanx.spec.registry import ByName, Registry

NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Spec):
    """Settings of an update rule. Subclass it for a new one."""

    name: str
    """Which kind: its name in the table, or `package.module:NAME`."""
    if TYPE_CHECKING:
        # Every rule declares its own default; here it would change the order of the settings.
        lr: PositiveFloat
    weight_decay: NonNegative = 0.0
    """Weight decay in the update rule: added to the gradient; adamw decouples it."""
    l2: NonNegative = 0.0
    """L2 regulariser on kernels (not on biases or normalisation): l2 · Σ w², reported apart from
    the loss."""
    clip_norm: PositiveFloat | None = None
    """Scale the whole gradient down to this norm if it is longer."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an exponential moving average of the weights, of which an update keeps this share, such
    as 0.999: it is what is evaluated and comes out of the run; null: the weights themselves."""

    @property
    def kind(self) -> OptimizerKind:
        """Its entry in the table."""
        return OPTIMIZERS.find(self.name)

    @property
    def slots(self) -> tuple[str, ...]:
        """State that is as long as the parameters, by name."""
        return self.kind.slots

    @property
    def momentum_slots(self) -> tuple[str, ...]:
        """State that remembers the direction of movement; a change of strategy may scale it."""
        return () if self.kind.momentum is None else (self.kind.momentum,)


class SgdSpec(OptimizerSpec):
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

    @property
    def slots(self) -> tuple[str, ...]:
        """State that is as long as the parameters, by name."""
        return self.kind.slots if self.momentum > 0 else ()


class AdagradSpec(OptimizerSpec):
    """Per-parameter rates from the sum of squared gradients."""

    name: Literal["adagrad"] = "adagrad"
    lr: PositiveFloat = 0.01
    """Peak learning rate."""
    eps: PositiveFloat = 1e-10
    """Keeps the division finite."""


class AdadeltaSpec(OptimizerSpec):
    """Per-parameter rates from running averages."""

    name: Literal["adadelta"] = "adadelta"
    lr: PositiveFloat = 1.0
    """Peak learning rate."""
    rho: Decay = 0.95
    """Decay of the running averages."""
    eps: PositiveFloat = 1e-6
    """Keeps the division finite."""


class _AdamFamily(OptimizerSpec):
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


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """Describe an update rule that works entry by entry, or an optimiser of torch.

    Import paths are `package.module:function`, loaded where they are used. `update` or `live` is
    there.
    """

    name: str
    spec: type[OptimizerSpec]
    update: str | None = None
    """Takes the spec and one flat tensor of parameters; returns the function (gradient, lr) that
    moves them once and its state: slots as long as the parameters, and counters without axes. The
    state exists before the first step."""
    live: str | None = None
    """Takes the spec and the network; returns a `torch.optim.Optimizer` over its parameters, after
    which those of replicas and servers are made."""
    lr: float | None = None
    """Peak learning rate where the job names none; None: the spec's own default."""
    slots: tuple[str, ...] = ()
    """State that is as long as the parameters, by name; of a torch optimiser as far as is known
    without making it, for predictions."""
    momentum: str | None = None
    """The slot that remembers the direction of movement; a change of strategy may scale it."""
    torch: str | None = None
    """Takes the spec and an iterable of parameters; returns a `torch.optim.Optimizer`."""
    tensorflow: str | None = None
    """Takes the spec; returns (variable, gradient, lr, number, *slots), which moves a variable."""


def _built_in(
    name: str, spec: type[OptimizerSpec], slots: tuple[str, ...], momentum: str | None = None
) -> OptimizerKind:
    return OptimizerKind(
        name=name,
        spec=spec,
        update=f"phalanx.engine.update:{name}_update",
        slots=slots,
        momentum=momentum,
        torch="phalanx.backends.ddp.optimizer:make_built_in",
        tensorflow=f"phalanx.backends.tensorflow.rules:{name}_rule",
    )


def _torch_optimizer(path: str, found: object) -> OptimizerKind:
    from phalanx.spec.torch_optimizer import optimizer_of  # it needs the table made here

    return optimizer_of(path, found)


def _known_optimizer(path: str) -> OptimizerKind | None:
    from phalanx.spec.torch_optimizer import known_optimizer  # it needs the table made here

    return known_optimizer(path)


OPTIMIZERS = Registry(
    "optimizer",
    OptimizerKind,
    group="phalanx.optimizers",
    built_in={
        kind.name: kind
        for kind in (
            _built_in("sgd", SgdSpec, ("momentum_buffer",), "momentum_buffer"),
            _built_in("adagrad", AdagradSpec, ("sum",)),
            _built_in("adadelta", AdadeltaSpec, ("square_avg", "acc_delta")),
            _built_in("adam", AdamSpec, ("exp_avg", "exp_avg_sq"), "exp_avg"),
            _built_in("adamw", AdamwSpec, ("exp_avg", "exp_avg_sq"), "exp_avg"),
        )
    },
    known=_known_optimizer,
    adapt=_torch_optimizer,
)

OptimizerField = Annotated[
    OptimizerSpec,
    ByName(
        tuple(OPTIMIZERS.find(name).spec for name in OPTIMIZERS.built_in), table=lambda: OPTIMIZERS
    ),
    BeforeValidator(name_only),
]
"""The type of a job's `optimizer`."""


class BarSpec(Spec):
    """Validation result required after a certain epoch."""

    epoch: Annotated[int, Field(gt=0)]
    """Measured after this many epochs."""
    value: float
    """A loss of at most, or an accuracy of at least this; of a metric, by what is better."""


class EarlyStopSpec(Spec):
    """End the run when validation stops improving, or misses a required value."""

    monitor: Monitor = "val_loss"
    """Figure that must improve: val_loss, val_accuracy, or `val_` and the name of a metric."""
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
