"""Make optimisers over ranges of a network's flat buffer, all of one kind.

A replica makes one over everything, a parameter server one for each segment of its shard. Rules of
the table take any range. For optimisers of torch.optim and of users, `cut_at` says where ranges
may begin and end; shards are planned by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.engine.cuts import find_cuts
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.recipe import OptimizerRecipe
from phalanx.engine.torch_rule import NAMED, TorchRule
from phalanx.spec.optimize import OptimizerSpec
from phalanx.spec.registry import load
from phalanx.spec.torch_optimizer import TorchOptimizerSpec


def factory_for(spec: OptimizerSpec, module: nn.Module, layout: FlatLayout) -> OptimizerFactory:
    """Return what makes the optimisers of a job, equal on every process of the run.

    Args:
        spec: Of the job.
        module: The network, whose parameters an optimiser of torch may choose by name or shape.
        layout: Of its parameters.

    Raises:
        SpecError: The torch optimiser cannot be made or used; the reason is quoted.
    """
    live = spec.kind.live
    if live is None:
        return OptimizerFactory(spec, layout)
    make = cast("Callable[[OptimizerSpec, nn.Module], Optimizer]", load(live))
    cuts = spec.cuts if isinstance(spec, TorchOptimizerSpec) else "auto"
    recipe = OptimizerRecipe.of(make(spec, module), module.named_parameters(), cuts=cuts)
    return OptimizerFactory(spec, layout, recipe=recipe)


class OptimizerFactory:
    """Make optimisers like one another.

    Args:
        spec: Regulariser and clipping; the update rule too if there is no recipe.
        layout: Of the network; None: without kernels, for rules of the table only.
        recipe: Of a torch optimiser. Where it may be cut is found by trial, unless it is declared.

    Raises:
        SpecError: The torch optimiser cannot be used; the reason is quoted.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        layout: FlatLayout | None = None,
        *,
        recipe: OptimizerRecipe | None = None,
    ) -> None:
        self.spec = spec
        self._layout = layout
        self.recipe: OptimizerRecipe | None = None
        self.why_not_cut = ""
        """Why slices may not meet anywhere; empty if they may."""
        if recipe is not None:
            assert layout is not None, "a recipe names parameters of a layout"
            found = find_cuts(recipe, layout)
            self.recipe = replace(recipe, cuts=found.cuts)
            self.why_not_cut = found.reason

    @property
    def name(self) -> str:
        """The optimiser's name, for messages."""
        return self.spec.name if self.recipe is None else self.recipe.name

    @property
    def cut_at(self) -> tuple[int, ...] | None:
        """Return the places of the flat buffer where slices may meet; None: anywhere."""
        if self.recipe is None or self._layout is None or self.recipe.cuts == "entry":
            return None
        if self.recipe.cuts == "whole":
            return ()
        return tuple(slot.start for slot in self._layout.slots[1:])

    @property
    def borders(self) -> tuple[int, ...]:
        """Return the places where slices have to meet: between parameters of two optimisers."""
        return ()

    def build(self, parameters: Tensor, within: Range | None = None) -> FlatOptimizer:
        """Make an optimiser over a slice.

        Args:
            parameters: The slice; written to.
            within: Its place in the layout; None: it is the whole buffer.

        Raises:
            SpecError: The optimiser keeps what cannot be saved.
        """
        if self._layout is None:
            return FlatOptimizer(self.spec, parameters)
        place = within or Range(0, self._layout.size)
        rule = None
        if self.recipe is not None:
            rule = TorchRule(self.recipe, parameters, layout=self._layout, within=place)
        return FlatOptimizer(self.spec, parameters, kernels=self._layout.kernels(place), rule=rule)


def join_states(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return copies of the states of neighbouring slices as one optimiser would have them.

    Counters of slices that were not updated equally often become the largest.
    """
    joined: dict[str, Tensor] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        values = [part[key] for part in parts if key in part]
        if not values[0].ndim:
            joined[key] = torch.stack(values).amax()
        else:
            # What belongs to one group is repeated by every slice that has some of it.
            joined[key] = values[-1].clone() if key.startswith(NAMED) else torch.cat(values)
    return joined


def slice_state(state: Mapping[str, Tensor], bounds: tuple[int, int]) -> dict[str, Tensor]:
    """Return views of the part of a state that a slice needs; it may hold what others own too."""
    start, stop = bounds
    return {
        key: value[start:stop] if value.ndim and not key.startswith(NAMED) else value
        for key, value in state.items()
    }
