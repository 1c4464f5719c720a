"""A topology of another package: one chain from the last worker to the first."""

from __future__ import annotations

from collections.abc import Sequence


def chain(machines: Sequence[int]) -> list[list[int]]:
    """Return the one chain, whose root is worker 0."""
    return [[rank - 1 for rank in range(len(machines))]]
