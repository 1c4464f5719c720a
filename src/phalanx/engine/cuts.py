"""Find out by trial where an optimiser's parameters may be cut into slices updated apart.

The optimiser of a recipe is run for a few steps on small tensors of the same numbers of dimensions
and groups: as a whole, with every tensor by itself, and on slices that are cut inside tensors. It
may be cut where the results agree. A trial is evidence, not proof: a rule that looks across tensors
only every hundred steps, or only at large tensors, passes it. Its user declares `cuts` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from phalanx.engine.layout import FlatLayout, Range, Slot
from phalanx.engine.pieces import grouped, pieces_of, tensors_over
from phalanx.engine.recipe import Cuts, OptimizerRecipe, quoted
from phalanx.errors import SpecError

PROBE_STEPS = 12
# Small, and different from each other, so that no two dimensions are mistaken for one another.
_SIDES = (5, 3, 2, 2)
# Tensors of each number of dimensions and group: two show whether tensors affect one another.
_ALIKE = 2
# Of the longest movement. Rounding differs by 1e-6 of it; what depends on other entries by far
# more.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class CutFinding:
    """Where an optimiser may be cut, and why not elsewhere; the reason is empty for `entry`."""

    cuts: Cuts
    reason: str = ""


def with_cuts(recipe: OptimizerRecipe, layout: FlatLayout) -> OptimizerRecipe:
    """Return the recipe with `cuts`: as declared, or found by trial.

    Raises:
        SpecError: The optimiser cannot be used at all; what it raised is quoted.
    """
    if recipe.cuts is not None:
        return recipe
    return replace(recipe, cuts=find_cuts(recipe, layout).cuts)


def find_cuts(recipe: OptimizerRecipe, layout: FlatLayout) -> CutFinding:
    """Try an optimiser on small copies of a network's parameters.

    Raises:
        SpecError: It fails even as a whole, such as one for sparse gradients, or it draws random
            numbers; says which.
    """
    small = _small_copy(recipe, layout)
    try:
        # Restored afterwards: dropout and the like do not depend on this trial.
        with torch.random.fork_rng(devices=[]):
            return _compare(recipe, small)
    except _FailedTrialError as error:
        raise SpecError(
            f"optimiser {recipe.name} cannot be used: {quoted(error.cause)}"
        ) from error.cause


def _compare(recipe: OptimizerRecipe, small: FlatLayout) -> CutFinding:
    whole = [Range(0, small.size)]
    torch.default_generator.manual_seed(1)
    expected = _run(recipe, small, whole, "whole")
    torch.default_generator.manual_seed(2)
    if not torch.equal(expected, _run(recipe, small, whole, "whole")):
        raise SpecError(
            f"optimiser {recipe.name} draws random numbers in its step, so that copies of a "
            "network on several workers would drift apart"
        )
    tensors = [Range(slot.start, slot.stop) for slot in small.slots]
    apart = _difference(recipe, small, tensors, "tensor", expected)
    if apart:
        return CutFinding("whole", f"with every tensor by itself, {apart}")
    cut = _difference(recipe, small, _slices(small.size), "entry", expected)
    if cut:
        return CutFinding("tensor", f"on slices cut inside tensors, {cut}")
    return CutFinding("entry")


class _FailedTrialError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _small_copy(recipe: OptimizerRecipe, layout: FlatLayout) -> FlatLayout:
    group_of = {name: index for index, group in enumerate(recipe.groups) for name in group.names}
    counts: dict[tuple[int, int], int] = {}
    slots: list[Slot] = []
    start = 0
    for slot in layout.slots:
        alike = (group_of.get(slot.name, -1), len(slot.shape))
        if alike[0] < 0 or counts.get(alike, 0) == _ALIKE:
            continue
        counts[alike] = counts.get(alike, 0) + 1
        # Not smaller than it is: a matrix of one row stays one.
        sides = (*_SIDES, *(2 for _ in slot.shape))
        shape = tuple(min(size, side) for size, side in zip(slot.shape, sides, strict=False))
        size = torch.Size(shape).numel()
        slots.append(
            Slot(name=slot.name, shape=shape, start=start, stop=start + size, channels_last=False)
        )
        start += size
    if not slots:
        raise SpecError(f"optimiser {recipe.name} has no parameter of this network")
    return FlatLayout(tuple(slots))


def _slices(size: int) -> list[Range]:
    # A prime number of entries: cuts fall inside tensors, and slices end beside vector registers.
    cuts = sorted({*range(0, size, 7), size})
    return [Range(start, stop) for start, stop in pairwise(cuts)]


def _difference(
    recipe: OptimizerRecipe,
    layout: FlatLayout,
    parts: list[Range],
    cuts: Cuts,
    expected: Tensor,
) -> str:
    try:
        found = _run(recipe, layout, parts, cuts)
    except _FailedTrialError as error:
        return f"it fails with {quoted(error.cause)}"
    moved = float((expected - _start(layout)).abs().max())
    off = float((found - expected).abs().max())
    if off <= _TOLERANCE * moved:
        return ""
    return f"its parameters differ by {off:.2g} after {PROBE_STEPS} steps"


def _run(recipe: OptimizerRecipe, layout: FlatLayout, parts: list[Range], cuts: Cuts) -> Tensor:
    """Return the parameters after all steps, with one optimiser per part."""
    flat = _start(layout)
    work = []
    for part in parts:
        pieces = pieces_of(recipe, layout, part, cuts)
        tensors = tensors_over(pieces, flat[part.start : part.stop])
        work.append((part, pieces, tensors))
    try:
        optimizers = [recipe.make(grouped(recipe, pieces, own)) for _, pieces, own in work]
        for step in range(PROBE_STEPS):
            gradient = _gradient(layout, step)
            for (part, pieces, tensors), optimizer in zip(work, optimizers, strict=True):
                for piece, tensor in zip(pieces, tensors, strict=True):
                    tensor.grad = piece.slot.view(gradient[part.start : part.stop])
                with torch.no_grad():
                    optimizer.step()
    except Exception as error:  # foreign code may raise anything; it is quoted
        raise _FailedTrialError(error) from error
    return flat


def _start(layout: FlatLayout) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(layout.size, generator=generator)


def _gradient(layout: FlatLayout, step: int) -> Tensor:
    """Return gradients from short to long, so that rules with a limit meet both sides of it."""
    generator = torch.Generator().manual_seed(100 + step)
    gradient = torch.randn(layout.size, generator=generator)
    return gradient * 10.0 ** (step % 5 - 2)
