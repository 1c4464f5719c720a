"""See an optimiser of Keras as one of torch, so that a session can save and average its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override


class KerasOptimizer(Optimizer):
    """A torch optimiser whose step is that of a Keras one, and whose state is its variables.

    Args:
        variables: Of the model, which Keras updates.
        optimizer: Built over these variables.
    """

    why_not_served = (
        "an optimiser of Keras updates whole variables of its own process, with a count and a "
        "schedule beside them, which parameter servers cannot make of slices; train Keras models "
        "under allreduce or local_sgd"
    )

    def __init__(self, variables: list[Any], optimizer: Any) -> None:
        self._keras = optimizer
        self._variables = variables
        rate = float(optimizer.learning_rate)
        super().__init__([one.value for one in variables], {"lr": rate, "iterations": 0})
        self._kept = _by_variable(variables, optimizer)
        for parameter, name, kept in self._kept:
            self.state[parameter][name] = kept.value.data

    @classmethod
    def of(cls, model: Any) -> KerasOptimizer:
        """Make that of a compiled and built model."""
        return cls(list(model.trainable_variables), model.optimizer)

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Let Keras update its variables by the gradients that are there."""
        for parameter, name, kept in self._kept:
            # A strategy moves state into a buffer of its own, and a checkpoint brings another one.
            now = self.state[parameter][name]
            if now.data_ptr() != kept.value.data_ptr():
                kept.value.data = now
        gradients = [one.value.grad for one in self._variables]
        type(self._keras).apply(self._keras, gradients, self._variables)
        group = self.param_groups[0]
        group["lr"] = float(self._keras.learning_rate)
        group["iterations"] = int(self._keras.iterations.numpy())

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore state, and tell Keras the learning rate and the number of updates."""
        super().load_state_dict(dict(state_dict))
        group = self.param_groups[0]
        self._keras.iterations.assign(group["iterations"])
        if not callable(getattr(self._keras, "_learning_rate", None)):
            self._keras.learning_rate = group["lr"]


def _by_variable(variables: list[Any], optimizer: Any) -> list[tuple[nn.Parameter, str, Any]]:
    """Find out which of an optimiser's variables belong to which one of the model.

    Keras names them after the model's: `dense_kernel_momentum`.
    """
    owners = {one.path.replace("/", "_"): one for one in variables}
    found = []
    for kept in optimizer.variables:
        names = [n for n, one in owners.items() if kept.name.startswith(f"{n}_")]
        name = max(names, key=len, default=None)
        if name is not None and tuple(kept.shape) == tuple(owners[name].shape):
            found.append((owners[name].value, kept.name.removeprefix(f"{name}_"), kept))
    return found
