"""Make the steps of a Keras optimiser over slices, as parameter servers need it.

A server holds a part of the parameters and no Keras model. There, an optimiser like the script's is
made of its configuration over that part. The rate comes with each update: Keras' schedules and
callbacks set it where the script runs.
"""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from typing_extensions import override

# Read once, when Keras is imported, and a server runs no script that says so.
os.environ.setdefault("KERAS_BACKEND", "torch")  # noqa: TID251

import keras

SERVED = (
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
)
"""Keras' optimisers whose state has the shape of the parameters, or is one number."""


class KerasRule(Optimizer):
    """A torch optimiser that steps as a Keras one does.

    Args:
        params: To be updated, in one group.
        lr: Learning rate.
        config: The Keras optimiser, serialised as JSON.
    """

    def __init__(self, params: Any, lr: float = 1.0, config: str = "") -> None:
        super().__init__(params, {"lr": lr, "config": config, "iterations": 0})
        (group,) = self.param_groups
        self._keras = keras.optimizers.deserialize(json.loads(group["config"]))
        self._variables = [
            keras.Variable(one, trainable=True, name=f"slice{index}")
            for index, one in enumerate(group["params"])
        ]
        self._keras.build(self._variables)
        self._kept = kept_by_variable(self._variables, self._keras)
        known = {id(one) for _, _, one in self._kept}
        known |= {id(self._keras.iterations), id(self._keras._learning_rate)}
        others = [one for one in self._keras.variables if id(one) not in known]
        # By number: names of Keras count up within a process.
        self._numbers = [(f"number{index}", one) for index, one in enumerate(others)]
        group.update({name: float(one.numpy()) for name, one in self._numbers})

    @property
    def cuts(self) -> Literal["auto", "tensor", "whole"]:
        """Where it may be cut into slices: gradients within a limit are no trial of it."""
        if self._keras.global_clipnorm is not None:
            return "whole"
        return "tensor" if self._keras.clipnorm is not None else "auto"

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Let Keras update the parameters by the gradients that are there."""
        (group,) = self.param_groups
        for parameter, name, kept in self._kept:
            now = self.state[parameter].setdefault(name, kept.value.data)
            if now.data_ptr() != kept.value.data_ptr():
                kept.value.data = now
        for name, number in self._numbers:
            number.assign(group[name])
        self._keras.iterations.assign(group["iterations"])
        self._keras.learning_rate = group["lr"]
        self._keras.apply([one.value.grad for one in self._variables], self._variables)
        group["iterations"] += 1
        group.update({name: float(one.numpy()) for name, one in self._numbers})


def serialized(optimizer: Any) -> str:
    """Return a Keras optimiser's configuration, with a rate that is set before each step."""
    found = keras.optimizers.serialize(optimizer)
    found["config"]["learning_rate"] = 1.0
    return json.dumps(found)


def why_not_served(optimizer: Any, variables: list[Any]) -> str | None:
    """Return why servers cannot make the steps of a Keras optimiser; None: they can."""
    name = type(optimizer).__name__
    if name not in SERVED or not type(optimizer).__module__.startswith("keras."):
        return (
            f"parameter servers cannot make the steps of Keras' optimiser {name}; compile the "
            f"model with one of {', '.join(SERVED)}, or use allreduce or local_sgd"
        )
    unusual = {
        "use_ema": optimizer.use_ema,
        "gradient_accumulation_steps": optimizer.gradient_accumulation_steps,
        "loss_scale_factor": optimizer.loss_scale_factor,
        "exclude_from_weight_decay()": getattr(
            optimizer, "_exclude_from_weight_decay_pattern", None
        ),
    }
    wrong = [what for what, value in unusual.items() if value]
    if wrong:
        return (
            f"{wrong[0]} of the Keras optimiser needs the whole model where the step is made; "
            "leave it out, or use allreduce or local_sgd"
        )
    bound = [one.path for one in variables if one.constraint is not None]
    if bound:
        return (
            f"'{bound[0]}' has a constraint, which parameter servers do not know; leave it out, or "
            "use allreduce or local_sgd"
        )
    return None


def kept_by_variable(
    variables: list[Any], optimizer: Any
) -> list[tuple[torch.nn.Parameter, str, Any]]:
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
