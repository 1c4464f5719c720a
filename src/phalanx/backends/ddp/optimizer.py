"""Make the job's update rule as an optimiser of torch.optim.

Fused where torch has a fused kernel for the CPU: all but Adadelta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import nn

from phalanx.spec.optimize import (
    AdadeltaSpec,
    AdagradSpec,
    AdamSpec,
    AdamwSpec,
    OptimizerSpec,
    SgdSpec,
)
from phalanx.spec.registry import load

Parameters = Iterable[nn.Parameter]


def make_optimizer(spec: OptimizerSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make the optimiser that the spec's kind names for torch."""
    assert spec.kind.torch is not None, "the job was checked against its backend"
    make = cast(
        "Callable[[OptimizerSpec, Parameters], torch.optim.Optimizer]", load(spec.kind.torch)
    )
    return make(spec, parameters)


def make_sgd(spec: SgdSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make `torch.optim.SGD`."""
    return torch.optim.SGD(
        parameters,
        lr=spec.lr,
        momentum=spec.momentum,
        nesterov=spec.nesterov,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def make_adagrad(spec: AdagradSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make `torch.optim.Adagrad`."""
    return torch.optim.Adagrad(
        parameters, lr=spec.lr, eps=spec.eps, weight_decay=spec.weight_decay, fused=True
    )


def make_adadelta(spec: AdadeltaSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make `torch.optim.Adadelta`."""
    return torch.optim.Adadelta(
        parameters, lr=spec.lr, rho=spec.rho, eps=spec.eps, weight_decay=spec.weight_decay
    )


def make_adam(spec: AdamSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make `torch.optim.Adam`."""
    return _adam_family(torch.optim.Adam, spec, parameters)


def make_adamw(spec: AdamwSpec, parameters: Parameters) -> torch.optim.Optimizer:
    """Make `torch.optim.AdamW`."""
    return _adam_family(torch.optim.AdamW, spec, parameters)


def _adam_family(
    rule: Callable[..., torch.optim.Optimizer], spec: AdamSpec | AdamwSpec, parameters: Parameters
) -> torch.optim.Optimizer:
    beta1, beta2 = spec.betas
    return rule(
        parameters,
        lr=spec.lr,
        betas=(beta1, beta2),
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        fused=True,
    )
