"""The fused step of a script's optimiser: the same numbers, and options as the script has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from phalanx.program.fused_step import fused

MAKE: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "sgd": lambda given: SGD(given, 0.1),
    "momentum": lambda given: SGD(given, 0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": lambda given: SGD(given, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda given: Adam(given, 0.01),
    "adamw": lambda given: AdamW(given, 0.01, amsgrad=True),
    "adagrad": lambda given: Adagrad(given, 0.01),
    "rmsprop": lambda given: RMSprop(given, 0.01),
    "tensor rate": lambda given: Adam(given, torch.tensor(0.01)),
}


def trained(make: Callable[[Iterable[nn.Parameter]], Optimizer], *, is_fused: bool) -> Any:
    """Train two layers, of which the second gets its first gradient later."""
    torch.manual_seed(0)
    first, late = nn.Linear(50, 3), nn.Linear(3, 3)
    parameters = [*first.parameters(), *late.parameters()]
    optimizer = make(parameters)
    step = fused(optimizer, optimizer.step) if is_fused else optimizer.step
    for number in range(10):
        optimizer.zero_grad()
        output = first(torch.randn(8, 50))
        (late(output) if number > 3 else output).square().mean().backward()
        step()
    return parameters, optimizer.state_dict()


@pytest.mark.parametrize("name", MAKE)
def test_it_is_equal_to_the_usual_step(name: str) -> None:
    expected, usual = trained(MAKE[name], is_fused=False)
    found, ours = trained(MAKE[name], is_fused=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert ours["param_groups"] == usual["param_groups"]
    torch.testing.assert_close(ours["state"], usual["state"], rtol=1e-4, atol=1e-6)


def test_kernels_that_the_script_has_chosen_stay_and_others_are_fused() -> None:
    used: list[Any] = []
    for options in ({}, {"foreach": True}, {"fused": False}):
        optimizer = Adam([nn.Parameter(torch.zeros(2))], 0.1, **options)
        group = optimizer.param_groups[0]
        fused(optimizer, lambda group=group: used.append(group["fused"]))()
    assert used == [True, None, False]


def test_options_are_restored_after_an_error() -> None:
    optimizer = Adam([nn.Parameter(torch.zeros(2))], 0.1)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fused(optimizer, fail)()
    assert optimizer.param_groups[0]["fused"] is None
