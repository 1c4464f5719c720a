"""See an optimiser of Keras as one of torch, so that a session can save and average its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from typing_extensions import override

from phalanx.integrations.keras_rule import (
    KerasRule,
    kept_by_variable,
    serialized,
    why_not_served,
)


class KerasOptimizer(Optimizer):
    """A torch optimiser whose step is that of a Keras one, and whose state is its variables.

    Args:
        variables: Of the model, which Keras updates.
        optimizer: Built over these variables.
    """

    def __init__(self, variables: list[Any], optimizer: Any) -> None:
        self._keras = optimizer
        self._variables = variables
        rate = float(optimizer.learning_rate)
        super().__init__([one.value for one in variables], {"lr": rate, "iterations": 0})
        self._kept = kept_by_variable(variables, optimizer)
        for parameter, name, kept in self._kept:
            self.state[parameter][name] = kept.value.data

    @classmethod
    def of(cls, model: Any) -> KerasOptimizer:
        """Make that of a compiled and built model."""
        return cls(list(model.trainable_variables), model.optimizer)

    @property
    def why_not_served(self) -> str | None:
        """Why parameter servers cannot make its steps; None: they can."""
        return why_not_served(self._keras, self._variables)

    def served_as(self) -> KerasRule:
        """Return the optimiser whose copies make its steps on parameter servers."""
        (group,) = self.param_groups
        return KerasRule(group["params"], group["lr"], serialized(self._keras))

    def follow(self, update: int) -> None:
        """Note which update of the run is computed next: others may have made those between."""
        self._keras.iterations.assign(update)

    def apply(self) -> None:
        """Make one update as Keras asks for it, by this process or by servers."""
        (group,) = self.param_groups
        # A schedule or a callback of Keras may have changed it.
        group["lr"] = float(self._keras.learning_rate)
        before = int(self._keras.iterations.numpy())
        self.step()
        if int(self._keras.iterations.numpy()) == before:
            # Another one has made it.
            self._keras.iterations.assign(before + 1)
        group["iterations"] = before + 1

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
