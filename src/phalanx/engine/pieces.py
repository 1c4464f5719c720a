"""Cut a range of the flat buffer into the tensors that one of torch's optimisers is given.

Where an optimiser may be cut between any two entries, all neighbours of one parameter group are one
long tensor: fewer calls, whatever the number of layers. Elsewhere every parameter is a tensor of
its own shape, as its author expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from phalanx.engine.layout import FlatLayout, Range, Slot
from phalanx.engine.recipe import Cuts, OptimizerRecipe


@dataclass(frozen=True)
class Piece:
    """One tensor of an optimiser.

    Attributes:
        group: Index of its parameter group.
        owner: Name under which its state is saved: of the group where cuts may be anywhere, and
            of the parameter elsewhere.
        slot: Its place, counted from the start of the range.
    """

    group: int
    owner: str
    slot: Slot


def pieces_of(
    recipe: OptimizerRecipe, layout: FlatLayout, within: Range, cuts: Cuts
) -> tuple[Piece, ...]:
    """Return the tensors of a range, in order; parameters of no group are left out.

    Raises:
        ValueError: The range begins or ends inside a tensor that must not be cut.
    """
    group_of = {name: index for index, group in enumerate(recipe.groups) for name in group.names}
    found: list[Piece] = []
    for slot in layout.slots:
        start, stop = max(slot.start, within.start), min(slot.stop, within.stop)
        group = group_of.get(slot.name)
        if group is None or start >= stop:
            continue
        if cuts == "entry":
            _append_run(found, group, start - within.start, stop - within.start)
        elif (start, stop) != (slot.start, slot.stop):
            raise ValueError(f"{within} cuts parameter '{slot.name}', which must stay whole")
        else:
            place = replace(slot, start=start - within.start, stop=stop - within.start)
            found.append(Piece(group, slot.name, place))
    return tuple(found)


def _append_run(found: list[Piece], group: int, start: int, stop: int) -> None:
    if found and found[-1].group == group and found[-1].slot.stop == start:
        start = found.pop().slot.start
    owner = group_name(group)
    place = Slot(name=owner, shape=(stop - start,), start=start, stop=stop, channels_last=False)
    found.append(Piece(group, owner, place))


def group_name(group: int) -> str:
    """Return the owner of state that all tensors of a group share; no parameter is called so."""
    return f"group {group}"


def tensors_over(pieces: Sequence[Piece], flat: Tensor) -> list[nn.Parameter]:
    """Return the pieces as parameters on the memory of `flat`."""
    return [nn.Parameter(piece.slot.view(flat)) for piece in pieces]


def grouped(
    recipe: OptimizerRecipe, pieces: Sequence[Piece], tensors: Sequence[nn.Parameter]
) -> list[list[nn.Parameter]]:
    """Sort tensors into the recipe's groups."""
    groups: list[list[nn.Parameter]] = [[] for _ in recipe.groups]
    for piece, tensor in zip(pieces, tensors, strict=True):
        groups[piece.group].append(tensor)
    return groups
