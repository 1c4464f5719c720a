"""The job's update rule as an optimiser of torch.optim."""

from __future__ import annotations

from collections.abc import Iterable

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


def make_optimizer(
    spec: OptimizerSpec, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Fused where torch has a fused kernel for the CPU: all but Adadelta."""
    decay = spec.weight_decay
    match spec:
        case SgdSpec():
            return torch.optim.SGD(
                parameters,
                lr=spec.lr,
                momentum=spec.momentum,
                nesterov=spec.nesterov,
                weight_decay=decay,
                fused=True,
            )
        case AdagradSpec():
            return torch.optim.Adagrad(
                parameters, lr=spec.lr, eps=spec.eps, weight_decay=decay, fused=True
            )
        case AdadeltaSpec():
            return torch.optim.Adadelta(
                parameters, lr=spec.lr, rho=spec.rho, eps=spec.eps, weight_decay=decay
            )
        case AdamSpec() | AdamwSpec():
            rule = torch.optim.AdamW if isinstance(spec, AdamwSpec) else torch.optim.Adam
            beta1, beta2 = spec.betas
            return rule(
                parameters,
                lr=spec.lr,
                betas=(beta1, beta2),
                eps=spec.eps,
                weight_decay=decay,
                fused=True,
            )
