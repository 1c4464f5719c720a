"""Gather the gradients of one update, segment by segment; used by `shard` alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.paramserver.update import Contribution
from phalanx.wire.push_options import PushOptions

Push = tuple[int, int]
"""Worker and clock."""


@dataclass(frozen=True, slots=True)
class ArrivedSegment:
    """A segment of a push that waits to be applied."""

    contribution: Contribution
    ticket: int
    num_samples: int


@dataclass
class UpdateGathering:
    """An update whose gradients are arriving."""

    pushes: set[Push] = field(default_factory=set)
    arrived: dict[int, dict[Push, ArrivedSegment]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    """Segments that have been applied."""
    lr: float | None = None
    """Set when the members are final."""
    weight: float = 1.0
    """Factor of the gradient, set with `lr`."""
    options: PushOptions | None = None
    options_from: tuple[int, int] = (-1, 0)
    """Step of the ticket that they came with, and its part, counted backwards."""
    counted_before: dict[Push, int] = field(default_factory=dict)
    """Samples of pushes that continue a batch: they weigh, and are not seen once more."""

    def take_options(self, options: PushOptions, step: int, part: int) -> None:
        """Follow the latest step, and in it the first part: the chief's, which has all steps."""
        if (step, -part) > self.options_from:
            self.options, self.options_from = options, (step, -part)

    def is_here(self, index: int) -> bool:
        """Return whether all pushes have brought a segment that is not applied yet."""
        return index not in self.done and len(self.arrived.get(index, ())) == len(self.pushes)
