"""Make the live optimiser that a job names by its import path, over a network's parameters."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import cast

from torch import nn
from torch.optim import Optimizer

from phalanx.engine.recipe import quoted
from phalanx.errors import SpecError
from phalanx.spec.optimize import OptimizerSpec
from phalanx.spec.registry import load
from phalanx.spec.torch_optimizer import TorchOptimizerSpec


def make_live(spec: OptimizerSpec, module: nn.Module) -> Optimizer:
    """Make the job's optimiser as its author would.

    A class is given the trained parameters, in the job's groups. A function is given the network
    and may sort its parameters itself. Both get the rate and `args` by name.

    Raises:
        SpecError: It cannot be made; what it raised is quoted.
    """
    assert isinstance(spec, TorchOptimizerSpec)
    make = cast("Callable[..., object]", load(spec.name))
    takes_network = not isinstance(make, type)
    if takes_network and spec.groups:
        raise SpecError(
            f"optimizer '{spec.name}' is a function, which makes its own groups; leave "
            "optimizer.groups out"
        )
    given = module if takes_network else _groups(spec, module)
    try:
        optimizer = make(given, lr=spec.lr, **spec.args)
    except Exception as error:  # foreign code may raise anything; the cause stays attached
        raise SpecError(f"optimizer '{spec.name}' cannot be made: {quoted(error)}") from error
    if not isinstance(optimizer, Optimizer):
        raise SpecError(
            f"optimizer '{spec.name}' is {type(optimizer).__name__}, not a torch.optim.Optimizer"
        )
    return optimizer


def _groups(spec: TorchOptimizerSpec, module: nn.Module) -> list[dict[str, object]]:
    """Return the groups of the job.

    The first, of all parameters that match no pattern, has the job's rate, even if it is empty:
    those of the others are in proportion to it.
    """
    sorted_out: list[list[nn.Parameter]] = [[] for _ in (None, *spec.groups)]
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        matching = (
            index
            for index, group in enumerate(spec.groups, start=1)
            if any(fnmatchcase(name, pattern) for pattern in group.match)
        )
        sorted_out[next(matching, 0)].append(parameter)
    for group, parameters in zip(spec.groups, sorted_out[1:], strict=True):
        if not parameters:
            raise SpecError(
                f"optimizer.groups: no parameter of the network is left for {list(group.match)}"
            )
    groups: list[dict[str, object]] = [{"params": sorted_out[0]}]
    for group, parameters in zip(spec.groups, sorted_out[1:], strict=True):
        groups.append({"params": parameters, **group.args})
    return groups
