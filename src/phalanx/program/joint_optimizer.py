"""Make the optimisers of several models of a script over slices of one buffer that holds them all.

Every slice belongs to one model, and so to one optimiser. Its state is kept by name, with the
number of the model in front: models may have different optimisers, of which each counts its own
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.engine.recipe import Options
from phalanx.engine.torch_rule import NAMED, TorchRule
from phalanx.spec.optimize import OptimizerSpec


def join_layouts(layouts: Sequence[FlatLayout]) -> FlatLayout:
    """Return the layout of several models, one after the other; names begin with their number."""
    slots, start = [], 0
    for number, layout in enumerate(layouts):
        slots += [
            replace(
                one,
                name=f"{number}.{one.name}",
                start=start + one.start,
                stop=start + one.stop,
            )
            for one in layout.slots
        ]
        start += layout.size
    return FlatLayout(tuple(slots))


class ModelRule:
    """The optimiser of one model, over a slice of its parameters.

    Args:
        number: Of the model.
        rule: Its optimiser over the slice.
        groups: Its parameter groups, among those of all models.
    """

    def __init__(self, number: int, rule: TorchRule, groups: range) -> None:
        self.rule = rule
        self._prefix = f"{NAMED}{number}:"
        self._groups = groups
        self._first: object = None
        self._own: object = None

    def update(self, gradient: Tensor, lr: float) -> None:
        """Make one step; `lr` is the rate of the first group of the first model."""
        own = self._own
        if isinstance(own, int | float) and isinstance(self._first, int | float) and self._first:
            # As it is where nothing scales it: a factor would round.
            lr = own if lr == self._first else lr * (own / self._first)
        elif isinstance(own, int | float):
            lr = own
        self.rule.update(gradient, lr)

    def set_options(self, groups: Sequence[Options]) -> None:
        """Use other options from the next step on, of which some are this model's."""
        own = groups[self._groups.start : self._groups.stop]
        self._first, self._own = groups[0].get("lr"), own[0].get("lr")
        self.rule.set_options(own)

    def state(self) -> dict[str, Tensor]:
        """Return the live state, by name."""
        return self._named(self.rule.state())

    def part(self, bounds: Range) -> dict[str, Tensor]:
        """Return the live state of some entries of the slice."""
        return self._named(self.rule.part(bounds))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state; that of other models is passed over."""
        self.rule.load_state(
            {
                key.removeprefix(self._prefix): value
                for key, value in state.items()
                if key.startswith(self._prefix)
            }
        )

    def _named(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self._prefix + key: value for key, value in state.items()}


class JointRule:
    """The optimisers of all models, over the whole buffer; each steps when its script says so."""

    def __init__(self, rules: Sequence[ModelRule], borders: Sequence[int]) -> None:
        self.rules = rules
        self._borders = borders

    def update(self, gradient: Tensor, lr: float) -> None:
        """Make a step of every optimiser."""
        for index, rule in enumerate(self.rules):
            rule.update(gradient[self._borders[index] : self._borders[index + 1]], lr)

    def set_options(self, groups: Sequence[Options]) -> None:
        """Use other options from the next step on."""
        for rule in self.rules:
            rule.set_options(groups)

    def state(self) -> dict[str, Tensor]:
        """Return the live state of all."""
        return {key: one for rule in self.rules for key, one in rule.state().items()}

    def part(self, bounds: Range) -> dict[str, Tensor]:
        """Return the live state of some entries."""
        found: dict[str, Tensor] = {}
        for index, rule in enumerate(self.rules):
            begin, end = self._borders[index], self._borders[index + 1]
            start, stop = max(begin, bounds.start), min(end, bounds.stop)
            if start < stop:
                found |= rule.part(Range(start - begin, stop - begin))
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for rule in self.rules:
            rule.load_state(state)


class JointFactory(OptimizerFactory):
    """Make optimisers of several models.

    Args:
        spec: As for one.
        layouts: Of the models.
        factories: Of each model's optimiser.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        layouts: Sequence[FlatLayout],
        factories: Sequence[OptimizerFactory],
    ) -> None:
        self._joint = join_layouts(layouts)
        super().__init__(spec, self._joint)
        self._layouts = layouts
        self._starts = [0]
        for layout in layouts:
            self._starts.append(self._starts[-1] + layout.size)
        self._groups = [0]
        self._recipes = []
        for factory in factories:
            assert factory.recipe is not None
            # Whole tensors at least: only then is all state kept by name.
            by_name = "tensor" if factory.recipe.cuts == "entry" else factory.recipe.cuts
            self._recipes.append(replace(factory.recipe, cuts=by_name))
            self._groups.append(self._groups[-1] + len(factory.recipe.groups))
        self._whole = any(one.why_not_cut and one.cut_at == () for one in factories)
        self.why_not_cut = "; ".join(one.why_not_cut for one in factories if one.why_not_cut)

    @property
    @override
    def name(self) -> str:
        return " and ".join(recipe.name for recipe in self._recipes)

    @property
    @override
    def cut_at(self) -> tuple[int, ...]:
        if self._whole:
            return ()
        return tuple(slot.start for slot in self._joint.slots[1:])

    @property
    @override
    def borders(self) -> tuple[int, ...]:
        return tuple(self._starts[1:-1])

    @override
    def build(self, parameters: Tensor, within: Range | None = None) -> FlatOptimizer:
        place = within or Range(0, self._joint.size)
        if within is None and len(self._layouts) > 1:
            rules = [
                self._rule(number, parameters[start:stop], Range(start, stop))
                for number, (start, stop) in enumerate(
                    zip(self._starts, self._starts[1:], strict=False)
                )
            ]
            return FlatOptimizer(self.spec, parameters, rule=JointRule(rules, self._starts))
        number = next(i for i, stop in enumerate(self._starts[1:]) if place.start < stop)
        return FlatOptimizer(self.spec, parameters, rule=self._rule(number, parameters, place))

    def _rule(self, number: int, parameters: Tensor, place: Range) -> ModelRule:
        start = self._starts[number]
        rule = TorchRule(
            self._recipes[number],
            parameters,
            layout=self._layouts[number],
            within=Range(place.start - start, place.stop - start),
        )
        return ModelRule(number, rule, range(self._groups[number], self._groups[number + 1]))
