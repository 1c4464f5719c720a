"""Learn, before training, what one of torch's optimisers keeps between its steps.

torch makes an optimiser's state during its first step. Checkpoints and servers need its names and
shapes before, so a few steps are made on copies. What cannot be saved by name is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.engine.recipe import OptimizerRecipe, quoted
from phalanx.errors import SpecError

Form = Literal["like", "tensor", "int", "float", "bool", "none"]
_NUMBERS: dict[type, Form] = {bool: "bool", int: "int", float: "float"}


@dataclass(frozen=True)
class Kept:
    """One value that an optimiser keeps.

    Attributes:
        form: A tensor in the shape of the parameter, another tensor, a number, or None.
        shape: Of a tensor.
        dtype: Of a tensor.
    """

    form: Form
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64


@dataclass(frozen=True)
class KeptState:
    """Everything that an optimiser keeps.

    Attributes:
        tensors: For each tensor that it was given, in the order of the groups, values by key.
        options: By index of a group, the options that its steps change, such as a counter.
        attributes: Numbers of the object itself that its steps change.
    """

    tensors: tuple[Mapping[str, Kept], ...]
    options: Mapping[int, Mapping[str, Kept]]
    attributes: Mapping[str, Kept]


def learn_state(
    recipe: OptimizerRecipe, groups: Sequence[Sequence[nn.Parameter]], *, steps: int
) -> KeptState:
    """Make a few steps, which move the parameters, and return what the optimiser keeps.

    Args:
        recipe: Of the optimiser.
        groups: Parameters that may be changed.
        steps: How many.

    Raises:
        SpecError: It fails, keeps what cannot be saved, or begins to keep it late.
    """
    optimizer = recipe.make(groups)
    before = [dict(group) for group in optimizer.param_groups]
    attributes = dict(vars(optimizer))
    tensors = [tensor for group in groups for tensor in group]
    generator = torch.Generator().manual_seed(0)
    first: tuple[Mapping[str, Kept], ...] | None = None
    for _ in range(steps):
        for tensor in tensors:
            tensor.grad = torch.empty_like(tensor).normal_(generator=generator)
        try:
            with torch.no_grad():
                optimizer.step()
        except Exception as error:  # foreign code may raise anything; it is quoted
            raise SpecError(f"optimiser {recipe.name} cannot be used: {quoted(error)}") from error
        now = tuple(_kept_of(recipe, optimizer.state[tensor], tensor) for tensor in tensors)
        first = now if first is None else first
        _check_same(recipe, first, now)
    _check_owners(recipe, optimizer, tensors)
    present = [index for index, group in enumerate(groups) if group]
    return KeptState(
        first or (),
        {
            index: _changed(recipe, f"option of its group {index}", old, new)
            for index, old, new in zip(present, before, optimizer.param_groups, strict=True)
        },
        _changed_numbers(attributes, vars(optimizer)),
    )


def _kept_of(
    recipe: OptimizerRecipe, state: Mapping[str, object], tensor: Tensor
) -> dict[str, Kept]:
    return {key: _kept(recipe, "state", key, value, tensor) for key, value in state.items()}


def _kept(
    recipe: OptimizerRecipe, where: str, key: str, value: object, like: Tensor | None
) -> Kept:
    if isinstance(value, Tensor):
        form: Form = "like" if like is not None and value.shape == like.shape else "tensor"
        return Kept(form, tuple(value.shape), value.dtype)
    if value is None:
        return Kept("none")
    form = _NUMBERS.get(type(value), "none")
    if form == "none":
        raise SpecError(
            f"optimiser {recipe.name} keeps a {type(value).__name__} as {where} '{key}', which "
            "cannot be saved; tensors and numbers can"
        )
    return Kept(form)


def _check_same(
    recipe: OptimizerRecipe,
    first: tuple[Mapping[str, Kept], ...],
    now: tuple[Mapping[str, Kept], ...],
) -> None:
    for one, other in zip(first, now, strict=True):
        if one != other:
            keys = sorted(
                key for key in one.keys() | other.keys() if one.get(key) != other.get(key)
            )
            raise SpecError(
                f"optimiser {recipe.name} changes the form of its state {keys} after the first "
                "step; checkpoints and servers need the same form from the first step on"
            )


def _check_owners(recipe: OptimizerRecipe, optimizer: Optimizer, tensors: Sequence[Tensor]) -> None:
    known = {id(tensor) for tensor in tensors}
    for owner, state in optimizer.state.items():
        if id(owner) not in known and state:
            raise SpecError(
                f"optimiser {recipe.name} keeps state under '{owner}', which is no parameter and "
                "cannot be saved; keep it as an option of the group"
            )


def _changed(
    recipe: OptimizerRecipe, where: str, before: Mapping[str, object], after: Mapping[str, object]
) -> dict[str, Kept]:
    found = {}
    for key, value in after.items():
        # The rate is set before every step.
        if key in ("params", "lr") or (key in before and _equal(before[key], value)):
            continue
        found[key] = _kept(recipe, where, key, value, None)
    return found


def _changed_numbers(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, Kept]:
    # Flags are left out: torch has some of its own.
    return {
        key: Kept(_NUMBERS[type(value)])
        for key, value in after.items()
        if type(value) in (int, float) and before.get(key) != value
    }


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    return one is other or one == other
