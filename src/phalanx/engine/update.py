"""Define the built-in update rules: one step of each on a single flat tensor.

The arithmetic is torch.optim's functional form. Its classes are not used, because the first one
built imports torch's compiler: 1.1 s and 67 MB in every worker, for nothing that is needed here.

One tensor of 1.2 million floats, one thread: fused kernels took 0.6 ms for SGD with momentum (1.0
otherwise), 0.65 for Adagrad (1.6), 1.0 for Adam (2.6). Adadelta has no fused kernel and took 3.8,
with or without foreach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from phalanx.engine.layout import Range
from phalanx.errors import EngineError, SpecError
from phalanx.spec.optimize import (
    AdadeltaSpec,
    AdagradSpec,
    AdamSpec,
    AdamwSpec,
    OptimizerSpec,
    SgdSpec,
)
from phalanx.spec.registry import load

Update = Callable[[Tensor, float], None]
"""Update the parameters once, given the gradient and the learning rate."""
State = dict[str, Tensor]


class EntryRule:
    """Run a rule of the table over one slice; its state is flat tensors and counters.

    Args:
        spec: The rule and its settings.
        parameters: The slice; one-dimensional, written to.
    """

    def __init__(self, spec: OptimizerSpec, parameters: Tensor) -> None:
        self._spec = spec
        self.update, self._state = make_update(spec, parameters)

    def state(self) -> State:
        """Return the live state."""
        return dict(self._state)

    def part(self, bounds: Range) -> State:
        """Return the live state of some entries of the slice; counters belong to all."""
        return {
            name: one[bounds.start : bounds.stop] if one.ndim else one
            for name, one in self._state.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state.

        Raises:
            EngineError: It is of another rule or of another length; nothing was changed.
        """
        expected = {key: tuple(value.shape) for key, value in self._state.items()}
        given = {key: tuple(value.shape) for key, value in state.items()}
        if given != expected:
            raise EngineError(
                f"the saved state of the optimiser has {given}, but '{self._spec.name}' here needs "
                f"{expected}; resume with the optimiser and model of the saved run"
            )
        for key, value in state.items():
            self._state[key].copy_(value)


def make_update(spec: OptimizerSpec, flat: Tensor) -> tuple[Update, State]:
    """Bind the rule to `flat`; return it and its state: flat tensors, and a step counter.

    The state exists from the start, so that a saved one can be loaded before the first step.

    Raises:
        SpecError: The state of another package's rule is not what its kind announces.
    """
    assert spec.kind.update is not None, "an optimiser of torch is made by its recipe"
    make = cast("Callable[[OptimizerSpec, Tensor], tuple[Update, State]]", load(spec.kind.update))
    update, state = make(spec, flat)
    slots = {name for name, one in state.items() if one.ndim}
    if slots != set(spec.slots):
        raise SpecError(
            f"optimizer '{spec.name}' keeps {sorted(slots)} for each parameter, but its kind says "
            f"{sorted(spec.slots)}"
        )
    return update, state


def _state(flat: Tensor, *names: str) -> State:
    return {"step": torch.zeros(()), **{name: torch.zeros_like(flat) for name in names}}


def sgd_update(spec: SgdSpec, flat: Tensor) -> tuple[Update, State]:
    """Bind stochastic gradient descent, with momentum if the spec has it."""
    if spec.momentum == 0 and spec.weight_decay == 0:
        # A fifth of the way through torch's function, which counts where a step is short.
        return lambda gradient, lr: _descend(flat, gradient, lr), {}
    # torch starts momentum at the first gradient; without dampening, zero gives the same step.
    state = {"momentum_buffer": torch.zeros_like(flat)} if spec.momentum > 0 else {}

    def update(gradient: Tensor, lr: float) -> None:
        sgd(
            [flat],
            [gradient],
            [state.get("momentum_buffer")],
            fused=True,
            weight_decay=spec.weight_decay,
            momentum=spec.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=spec.nesterov,
            maximize=False,
        )

    return update, state


def _descend(flat: Tensor, gradient: Tensor, lr: float) -> None:
    flat.add_(gradient, alpha=-lr)


def adagrad_update(spec: AdagradSpec, flat: Tensor) -> tuple[Update, State]:
    """Bind Adagrad."""
    state = _state(flat, "sum")

    def update(gradient: Tensor, lr: float) -> None:
        adagrad(
            [flat],
            [gradient],
            [state["sum"]],
            [state["step"]],
            fused=True,
            lr=lr,
            weight_decay=spec.weight_decay,
            lr_decay=0.0,
            eps=spec.eps,
            maximize=False,
        )

    return update, state


def adadelta_update(spec: AdadeltaSpec, flat: Tensor) -> tuple[Update, State]:
    """Bind Adadelta."""
    state = _state(flat, "square_avg", "acc_delta")

    def update(gradient: Tensor, lr: float) -> None:
        adadelta(
            [flat],
            [gradient],
            [state["square_avg"]],
            [state["acc_delta"]],
            [state["step"]],
            foreach=False,
            lr=lr,
            rho=spec.rho,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            maximize=False,
        )

    return update, state


def adam_update(spec: AdamSpec, flat: Tensor) -> tuple[Update, State]:
    """Bind Adam."""
    return _adam_family(adam, spec, flat)


def adamw_update(spec: AdamwSpec, flat: Tensor) -> tuple[Update, State]:
    """Bind Adam with decoupled weight decay."""
    return _adam_family(adamw, spec, flat)


def _adam_family(
    rule: Callable[..., None], spec: AdamSpec | AdamwSpec, flat: Tensor
) -> tuple[Update, State]:
    state = _state(flat, "exp_avg", "exp_avg_sq")
    beta1, beta2 = spec.betas

    def update(gradient: Tensor, lr: float) -> None:
        rule(
            [flat],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=spec.weight_decay,
            eps=spec.eps,
            maximize=False,
        )

    return update, state
