"""Update a slice of the flat buffer by an optimiser of torch.optim, or one of the user.

The optimiser is made of a recipe over tensors that lie in the slice, and is given the slice of the
gradient. What it keeps is exposed by name, from before its first step, so that checkpoints, servers
and switches of strategy treat it as they treat the built-in rules:

| Where it may be cut | State in the shape of a parameter | All other state |
|---|---|---|
| between any entries | one flat tensor per key, as long as the slice | `named/group 0/step` |
| between tensors, or nowhere | `named/layer.weight/exp_avg`, flat | `named/layer.weight/step` |

Tensors are live, numbers are copied in and out around a step. `begun` says whether there was a
step: before it, the optimiser starts as its author wrote it, and the rest means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from phalanx.engine.cuts import PROBE_STEPS
from phalanx.engine.kept_state import Kept, KeptState, learn_state
from phalanx.engine.layout import FlatLayout, Range, Slot
from phalanx.engine.pieces import Piece, group_name, grouped, pieces_of, tensors_over
from phalanx.engine.recipe import OptimizerRecipe, Options
from phalanx.errors import EngineError

BEGUN = "begun"
NAMED = "named/"
"""Prefix of state that belongs to a group or parameter and is never cut."""
_ITSELF = "optimizer"
_TYPES = {"int": int, "float": float, "bool": bool}
# Where tensors are as large as the network's: as few steps as show whether the state's form stays.
_STEPS_IN_FULL_SIZE = 2


@dataclass(frozen=True)
class _Home:
    """Where one value of the optimiser is exposed.

    Attributes:
        piece: Index of the tensor that it belongs to.
        key: Its name in torch's state.
        kept: Its form.
        tensor: The exposed one; in the form `like`, the view of it in the parameter's shape.
        leads: Whether the exposed value is taken from here; others of a group repeat it.
    """

    piece: int
    key: str
    kept: Kept
    tensor: Tensor
    leads: bool


class TorchRule:
    """Run one optimiser over one slice.

    Args:
        recipe: With `cuts`.
        parameters: The slice; one-dimensional, written to.
        layout: Of the whole network.
        within: The slice within it.

    Raises:
        SpecError: The optimiser fails, or keeps what cannot be saved.
        ValueError: The slice cuts a tensor that must stay whole.
    """

    def __init__(
        self, recipe: OptimizerRecipe, parameters: Tensor, *, layout: FlatLayout, within: Range
    ) -> None:
        assert recipe.cuts is not None, "the recipe's cuts must be known"
        self._recipe = recipe
        self._by_entry = recipe.cuts == "entry"
        self._pieces = _in_group_order(pieces_of(recipe, layout, within, recipe.cuts))
        self._tensors = tensors_over(self._pieces, parameters)
        kept = self._learn(parameters)
        self._state: dict[str, Tensor] = {BEGUN: torch.zeros(())}
        self._present = sorted({piece.group for piece in self._pieces})
        self._homes = tuple(self._make_homes(kept, len(within)))
        self._numbers = tuple(self._make_numbers(kept))
        # Views in the parameters' shapes are live; only what is copied has to be watched.
        copied = [home.tensor for home in self._homes if home.kept.form != "like" and home.leads]
        self._watched = [self._state[BEGUN], *copied, *(one for _, one, _, _ in self._numbers)]
        self._groups = [group.options for group in recipe.groups]
        self._install()

    def update(self, gradient: Tensor, lr: float) -> None:
        """Make one step.

        Args:
            gradient: Of the slice; the optimiser may change it.
            lr: Rate of the first group; those of the others are in proportion to it.
        """
        if not self._pieces:
            return
        if self._versions() != self._known:
            self._install()
        self._set_rates(lr)
        for piece, tensor in zip(self._pieces, self._tensors, strict=True):
            tensor.grad = piece.slot.view(gradient)
        with torch.no_grad():
            self._optimizer.step()
        for tensor in self._tensors:
            tensor.grad = None  # the gradient's memory is another's
        self._collect()

    def set_options(self, groups: Sequence[Options]) -> None:
        """Use other options from the next step on, as a scheduler sets them; `lr` among them."""
        self._groups = [{**own, **new} for own, new in zip(self._groups, groups, strict=True)]
        if not self._pieces:
            return
        changed = {key for _, _, key, _ in self._numbers}
        for index, group in zip(self._present, self._optimizer.param_groups, strict=True):
            group.update(
                {key: one for key, one in self._groups[index].items() if key not in changed}
            )

    def state(self) -> dict[str, Tensor]:
        """Return the live state."""
        return dict(self._state)

    def part(self, bounds: Range) -> dict[str, Tensor]:
        """Return the live state of some entries of the slice; see `FlatOptimizer.part`."""
        owners = {_ITSELF} | {
            owner
            for piece in self._pieces
            if piece.slot.start < bounds.stop and bounds.start < piece.slot.stop
            for owner in (piece.owner, group_name(piece.group))
        }
        return {
            key: value[bounds.start : bounds.stop]
            if not key.startswith(NAMED) and value.ndim
            else value
            for key, value in self._state.items()
            if not key.startswith(NAMED) or _owner(key) in owners
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state; that of owners outside of this slice is passed over.

        Raises:
            EngineError: It is of another optimiser or of another length; nothing was changed.
        """
        for key, own in self._state.items():
            given = state.get(key)
            if given is None or given.shape != own.shape:
                found = "nothing" if given is None else f"shape {tuple(given.shape)}"
                raise EngineError(
                    f"the saved state of the optimiser has {found} for '{key}', but "
                    f"{self._recipe.name} here needs {tuple(own.shape)}; resume with the "
                    "optimiser and model of the saved run"
                )
        for key, own in self._state.items():
            own.copy_(state[key])

    def _learn(self, parameters: Tensor) -> KeptState:
        if not self._by_entry:
            copies = tensors_over(self._pieces, parameters.clone())
            steps = _STEPS_IN_FULL_SIZE
            return learn_state(
                self._recipe, grouped(self._recipe, self._pieces, copies), steps=steps
            )
        # Every group, also where this slice has none of it: all slices expose the same keys.
        small = [[nn.Parameter(torch.ones(7))] for _ in self._recipe.groups]
        learned = learn_state(self._recipe, small, steps=PROBE_STEPS)
        self._slots = {
            key: one.dtype
            for kept in learned.tensors
            for key, one in kept.items()
            if one.form == "like"
        }
        return replace(learned, tensors=tuple(learned.tensors[p.group] for p in self._pieces))

    def _make_homes(self, kept: KeptState, size: int) -> Iterator[_Home]:
        if self._by_entry:
            self._state |= {
                key: torch.zeros(size, dtype=dtype) for key, dtype in self._slots.items()
            }
        for index, (piece, values) in enumerate(zip(self._pieces, kept.tensors, strict=True)):
            for key, one in values.items():
                if one.form == "like" and self._by_entry:
                    yield _Home(index, key, one, piece.slot.view(self._state[key]), True)
                    continue
                name = f"{NAMED}{piece.owner}/{key}"
                leads = name not in self._state
                if one.form == "like":
                    # In the order of memory, which is that of the parameter.
                    flat = self._state[name] = torch.zeros(len(_range(piece)), dtype=one.dtype)
                    yield _Home(index, key, one, _at_zero(piece.slot).view(flat), True)
                    continue
                if leads and one.form != "none":
                    self._state[name] = torch.zeros(one.shape, dtype=one.dtype)
                yield _Home(index, key, one, self._state.get(name, torch.empty(0)), leads)

    def _make_numbers(self, kept: KeptState) -> Iterator[tuple[int | None, Tensor, str, Kept]]:
        """Yield what steps change outside of torch's state: group, exposed tensor, key, form."""
        for group in self._present:
            for key, one in kept.options[group].items():
                name = f"{NAMED}{group_name(group)}/option.{key}"
                self._state[name] = torch.zeros(one.shape, dtype=one.dtype)
                yield group, self._state[name], key, one
        for key, one in kept.attributes.items():
            name = f"{NAMED}{_ITSELF}/{key}"
            self._state[name] = torch.zeros((), dtype=one.dtype)
            yield None, self._state[name], key, one

    def _set_rates(self, lr: float) -> None:
        first = self._groups[0].get("lr")
        for index, group in zip(self._present, self._optimizer.param_groups, strict=True):
            own = self._groups[index].get("lr")
            if not isinstance(first, int | float) or not isinstance(own, int | float):
                continue
            if lr == first:
                group["lr"] = own  # as it is: a factor would round
            else:
                group["lr"] = lr if own == first or first == 0 else lr * (own / first)

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self._watched]

    def _install(self) -> None:
        """Make the optimiser anew from what is exposed."""
        if self._pieces:
            self._optimizer = self._recipe.make(grouped(self._recipe, self._pieces, self._tensors))
            self.set_options(self._groups)
            if self._state[BEGUN].item():
                self._restore()
        self._known = self._versions()

    def _restore(self) -> None:
        for home in self._homes:
            state = self._optimizer.state[self._tensors[home.piece]]
            if home.kept.form == "like":
                state[home.key] = home.tensor
            elif home.kept.form == "tensor":
                state[home.key] = home.tensor if home.leads else home.tensor.clone()
            elif home.kept.form == "none":
                state[home.key] = None
            else:
                state[home.key] = _TYPES[home.kept.form](home.tensor.item())
        for place, tensor, key, kept in self._places():
            if kept.form == "none":
                continue
            place[key] = (
                tensor.clone() if kept.form == "tensor" else _TYPES[kept.form](tensor.item())
            )

    def _collect(self) -> None:
        """Expose what the optimiser has changed.

        Raises:
            EngineError: It has begun to keep something new, which no checkpoint would hold.
        """
        self._state[BEGUN].fill_(1)
        if sum(len(self._optimizer.state[tensor]) for tensor in self._tensors) != len(self._homes):
            known = {home.key for home in self._homes}
            new = {key for one in self._tensors for key in self._optimizer.state[one]} - known
            raise EngineError(
                f"optimiser {self._recipe.name} began to keep {sorted(new)} after several steps; "
                "checkpoints and servers need all of its state from the first step on"
            )
        for home in self._homes:
            state = self._optimizer.state[self._tensors[home.piece]]
            value = state.get(home.key)
            if isinstance(value, Tensor):
                # Only the first time, unless the optimiser replaces its state in every step.
                if home.leads and value is not home.tensor:
                    home.tensor.copy_(value)
                    state[home.key] = home.tensor
            elif home.leads and value is not None:
                home.tensor.fill_(value)
        for place, tensor, key, _ in self._places():
            value = place[key]
            if isinstance(value, Tensor):
                tensor.copy_(value)
            elif isinstance(value, int | float):
                tensor.fill_(value)
        self._known = self._versions()

    def _places(self) -> Iterator[tuple[dict[str, object], Tensor, str, Kept]]:
        groups = dict(zip(self._present, self._optimizer.param_groups, strict=True))
        for group, tensor, key, kept in self._numbers:
            if group is None:
                yield vars(self._optimizer), tensor, key, kept
            else:
                yield groups[group], tensor, key, kept


def _in_group_order(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    return tuple(sorted(pieces, key=lambda piece: piece.group))


def _range(piece: Piece) -> Range:
    return Range(piece.slot.start, piece.slot.stop)


def _at_zero(slot: Slot) -> Slot:
    return replace(slot, start=0, stop=slot.stop - slot.start)


def _owner(key: str) -> str:
    return key.removeprefix(NAMED).rpartition("/")[0]
