"""Make the job's update rule as an optimiser of torch.optim.

Fused where torch has a fused kernel for the CPU: all but Adadelta.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import nn

from phalanx.spec.optimize import OptimizerSpec
from phalanx.spec.registry import load

Parameters = Iterable[nn.Parameter]

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make_optimizer(spec: OptimizerSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make the optimiser that the spec's kind names for torch."""
    assert spec.kind.torch is not None, "the job was checked against its backend"
    make = cast(
        "Callable[[OptimizerSpec, Parameters], torch.optim.Optimizer]", load(spec.kind.torch)
    )
    return make(spec, parameters)


def make_built_in(spec: OptimizerSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make torch's optimiser of the same name; the spec names its settings as torch does."""
    make = _CLASSES[spec.kind.name]
    known = inspect.signature(make).parameters
    settings = {name: getattr(spec, name) for name in known if hasattr(spec, name)}
    if "fused" in known:
        settings["fused"] = True
    return make(parameters, **settings)
