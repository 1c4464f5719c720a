"""Describe an optimiser of torch.optim, or of the user, that a job names by its import path.

`torch.optim:NAdam` is known here by name, so that the control plane reads such a job without
importing torch. A class or function of the user is imported: only then is it known not to be an
`OptimizerKind`.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator
from typing_extensions import override

from phalanx.errors import SpecError
from phalanx.spec.base import ListOf, Spec, fault
from phalanx.spec.optimize import OPTIMIZERS, OptimizerKind, OptimizerSpec, PositiveFloat

_MODULE = "torch.optim:"
KNOWN: dict[str, tuple[float, tuple[str, ...]]] = {
    "ASGD": (0.01, ("ax",)),
    "Adadelta": (1.0, ("square_avg", "acc_delta")),
    "Adafactor": (0.01, ()),
    "Adagrad": (0.01, ("sum",)),
    "Adam": (0.001, ("exp_avg", "exp_avg_sq")),
    "AdamW": (0.001, ("exp_avg", "exp_avg_sq")),
    "Adamax": (0.002, ("exp_avg", "exp_inf")),
    "Muon": (0.001, ("momentum_buffer",)),
    "NAdam": (0.002, ("exp_avg", "exp_avg_sq")),
    "RAdam": (0.001, ("exp_avg", "exp_avg_sq")),
    "RMSprop": (0.01, ("square_avg",)),
    "Rprop": (0.01, ("prev", "step_size")),
    "SGD": (0.001, ()),
}
"""Optimisers of torch.optim that move by a dense gradient: default rate, and what each keeps as
long as the parameters if it has its default settings."""
_REFUSED = {
    "LBFGS": "computes the loss several times in one step, which no strategy can share out",
    "SparseAdam": "takes sparse gradients only, and gradients are exchanged in one dense buffer",
    "Optimizer": "is the base class of optimisers",
}


class ParameterGroupSpec(Spec):
    """Parameters with settings of their own."""

    match: Annotated[ListOf[str], Field(min_length=1)]
    """Patterns of parameter names, such as ['*.bias', 'norm*']; a parameter is in the first group
    that matches it."""
    args: dict[str, JsonValue] = {}
    """Settings that differ in this group, such as {weight_decay: 0}."""


class TorchOptimizerSpec(OptimizerSpec):
    """A `torch.optim.Optimizer` as it is, cut over parameter servers where that is exact."""

    lr: PositiveFloat
    """Peak learning rate; default: that of the class."""
    args: dict[str, JsonValue] = {}
    """Other keyword arguments of the class or function."""
    groups: ListOf[ParameterGroupSpec] = ()
    """Parameters with settings of their own; all others have those of `args`."""
    cuts: Literal["auto", "entry", "tensor", "whole"] = "auto"
    """Where its parameters may be cut over servers without changing the result: anywhere, between
    tensors, or nowhere; auto: found by trial."""

    @model_validator(mode="before")
    @classmethod
    def _default_rate(cls, given: object) -> object:
        if isinstance(given, dict) and "lr" not in given:
            rate = OPTIMIZERS.find(given["name"]).lr
            return given if rate is None else {**given, "lr": rate}
        return given

    @model_validator(mode="after")
    def _one_place_for_each_setting(self) -> TorchOptimizerSpec:
        if self.weight_decay:
            raise fault(
                f"optimizer '{self.name}' takes weight_decay in args",
                f"; write 'args: {{weight_decay: {self.weight_decay:g}}}'",
                at=("weight_decay",),
            )
        for forbidden in ("lr", "params"):
            if forbidden in self.args:
                place = "beside args" if forbidden == "lr" else "from the network"
                raise fault(f"optimizer.args takes no {forbidden}: it comes {place}", at=("args",))
        return self

    @property
    @override
    def momentum_slots(self) -> tuple[str, ...]:
        """Names that torch's optimisers give to it."""
        return ("momentum_buffer", "exp_avg")


def known_optimizer(path: str) -> OptimizerKind | None:
    """Return the kind of an optimiser of torch.optim without importing it; None: another's.

    Raises:
        SpecError: It cannot be used; says why.
    """
    if not path.startswith(_MODULE):
        return None
    name = path.removeprefix(_MODULE)
    if name in _REFUSED:
        raise SpecError(f"optimizer '{path}' cannot be used: it {_REFUSED[name]}")
    return _kind(path, *KNOWN[name]) if name in KNOWN else None


def optimizer_of(path: str, found: object) -> OptimizerKind:
    """Return the kind of a class of the user, or of a function that makes its object.

    Raises:
        SpecError: It is another class.
    """
    if isinstance(found, type) and not (hasattr(found, "step") and hasattr(found, "zero_grad")):
        raise SpecError(
            f"optimizer '{path}' is {type(found).__name__}, not OptimizerKind or "
            "torch.optim.Optimizer"
        )
    try:
        rate = inspect.signature(found).parameters.get("lr")  # type: ignore[arg-type]  # callable
    except (TypeError, ValueError):
        rate = None
    default = rate.default if rate is not None else None
    return _kind(path, float(default) if isinstance(default, int | float) else None)


def _kind(path: str, lr: float | None, slots: tuple[str, ...] = ()) -> OptimizerKind:
    return OptimizerKind(
        name=path,
        spec=TorchOptimizerSpec,
        live="phalanx.engine.live_optimizer:make_live",
        lr=lr,
        slots=slots,
    )
