"""Let a script's optimiser step by torch's fused kernels, where the script has not chosen others.

They make one pass over memory where the usual ones make several: a third off SGD with momentum,
more off Adam. Options of the optimiser's groups are as the script knows them outside of the step,
so that its state dicts mean the same elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

_HAVE_KERNELS = (SGD, Adam, AdamW, Adagrad)


def fused(optimizer: Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step that uses fused kernels; subclasses of the user's step as they do."""
    if type(optimizer) not in _HAVE_KERNELS:
        return step

    def step_fused() -> Any:
        chosen = [group for group in optimizer.param_groups if _is_free(optimizer, group)]
        for group in chosen:
            group["fused"] = True
        try:
            return step()
        finally:
            for group in chosen:
                group["fused"] = None

    return step_fused


def _is_free(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    if group.get("fused") is not None or group.get("foreach") is not None:
        return False
    if group.get("differentiable") or isinstance(group["lr"], Tensor):
        return False
    if not group.get("momentum"):
        return True
    # The kernel of SGD begins all momenta of a group together, or none.
    momenta = [
        optimizer.state[one].get("momentum_buffer") is None if one in optimizer.state else True
        for one in group["params"]
        if one.grad is not None
    ]
    return all(momenta) or not any(momenta)
