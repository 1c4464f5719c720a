"""Describe a live `torch.optim.Optimizer`, so that others like it can be made over other tensors.

A recipe holds the class, its arguments and its parameter groups by the names of the parameters.
Servers make one optimiser of it for each slice that they own (`torch_rule`); `cuts` finds out where
slices may begin and end. A recipe can be pickled wherever its class can be imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.errors import SpecError

Cuts = Literal["entry", "tensor", "whole"]
"""Where the parameters may be cut into slices that are updated apart: between any two entries,
between tensors, or nowhere."""
Options = Mapping[str, object]
# `params` is what is replaced; the names belong to it.
_NOT_OPTIONS = ("params", "param_names")


@dataclass(frozen=True)
class RecipeGroup:
    """One parameter group.

    Attributes:
        names: Of its parameters, as in `named_parameters()`.
        options: Everything else that torch keeps in the group, such as `lr` and `weight_decay`.
    """

    names: tuple[str, ...]
    options: Options


@dataclass(frozen=True)
class OptimizerRecipe:
    """What it takes to make an optimiser like another one.

    Attributes:
        cls: Its class.
        arguments: Of its constructor, besides the parameters.
        groups: Its parameter groups.
        cuts: Where slices may begin and end; None: not known yet, see `cuts.with_cuts`.
    """

    cls: type[Optimizer]
    arguments: Options
    groups: tuple[RecipeGroup, ...]
    cuts: Cuts | None = None

    @classmethod
    def of(
        cls,
        optimizer: Optimizer,
        named: Iterable[tuple[str, nn.Parameter]],
        *,
        cuts: Cuts | Literal["auto"] = "auto",
    ) -> OptimizerRecipe:
        """Read a live optimiser; it is not changed, and its state is not part of the recipe.

        Args:
            optimizer: Of torch, or of the user.
            named: The network's `named_parameters()`.
            cuts: Declared by the user; auto: not known yet.

        Raises:
            SpecError: It needs a closure, holds parameters of another network, or was made by
                arguments that it does not keep.
        """
        _check_step(optimizer)
        name_of = {id(parameter): name for name, parameter in named}
        groups = []
        for group in optimizer.param_groups:
            names = [name_of.get(id(parameter)) for parameter in group["params"]]
            if None in names:
                shape = tuple(group["params"][names.index(None)].shape)
                raise SpecError(
                    f"optimiser {_name(type(optimizer))} holds a parameter of shape {shape} that "
                    "the network does not have; give it the parameters of this network"
                )
            options = {
                key: _plain(value) for key, value in group.items() if key not in _NOT_OPTIONS
            }
            groups.append(RecipeGroup(tuple(name for name in names if name), options))
        return cls(
            cls=type(optimizer),
            arguments=_arguments_of(optimizer),
            groups=tuple(groups),
            cuts=None if cuts == "auto" else cuts,
        )

    @property
    def name(self) -> str:
        """Class with its module, for messages."""
        return _name(self.cls)

    @property
    def lr(self) -> float:
        """Learning rate of the first group; those of the others are in proportion to it."""
        lr = self.groups[0].options.get("lr", 0.0)
        return float(lr) if isinstance(lr, int | float) else 0.0

    def make(self, groups: Sequence[Sequence[nn.Parameter]]) -> Optimizer:
        """Make an optimiser over other parameters, group by group; empty groups are left out.

        Raises:
            SpecError: The class refuses; what it raised is quoted.
        """
        given = [
            {"params": list(parameters), **group.options}
            for parameters, group in zip(groups, self.groups, strict=True)
            if parameters
        ]
        try:
            return self.cls(given, **self.arguments)  # type: ignore[arg-type]  # its own ones
        except Exception as error:  # foreign code may raise anything; the cause stays attached
            raise SpecError(
                f"optimiser {self.name} cannot be made over other tensors: {quoted(error)}"
            ) from error


def quoted(error: BaseException) -> str:
    """Return the name and first line of an exception of foreign code."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _name(cls: type[Optimizer]) -> str:
    # torch.optim.adam.Adam is known as torch.optim.Adam.
    module = "torch.optim" if cls.__module__.startswith("torch.optim.") else cls.__module__
    return f"{module}.{cls.__qualname__}"


def _check_step(optimizer: Optimizer) -> None:
    # The class's method: a scheduler replaces the one of the object by a wrapper.
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SpecError(
            f"optimiser {_name(type(optimizer))} computes the loss several times in one step (its "
            "step needs a closure), which no strategy can share out; take one that moves by a "
            "gradient, such as torch.optim.Adam"
        )


def _arguments_of(optimizer: Optimizer) -> dict[str, object]:
    _, *others = inspect.signature(type(optimizer)).parameters.values()
    found: dict[str, object] = {}
    for argument in others:
        if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            continue
        if argument.name in optimizer.defaults:
            found[argument.name] = _plain(optimizer.defaults[argument.name])
        elif argument.name in vars(optimizer):
            found[argument.name] = vars(optimizer)[argument.name]
        elif argument.default is argument.empty:
            raise SpecError(
                f"optimiser {_name(type(optimizer))} keeps its argument '{argument.name}' neither "
                "in its defaults nor as an attribute of that name, so that servers cannot make "
                "another like it"
            )
    return found


def _plain(value: object) -> object:
    """Copy a rate that is a tensor to a number: slices must not share it."""
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
