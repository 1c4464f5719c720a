"""The Pareto front: the cells that no other cell beats in both time and quality; pure."""

from __future__ import annotations

from collections.abc import Mapping

Point = tuple[float, float]
"""Time, of which less is better, and quality, of which more is better."""


def dominators(points: Mapping[str, Point]) -> dict[str, str | None]:
    """For each point the best one that is no worse in both and better in one, or None: the front.

    Of several the one with the highest quality is named, then the fastest.
    """
    found: dict[str, str | None] = {}
    for name, point in points.items():
        better = [other for other in points if _dominates(points[other], point)]
        best = min(
            better, key=lambda other: (-points[other][1], points[other][0], other), default=None
        )
        found[name] = best
    return found


def front(points: Mapping[str, Point]) -> list[str]:
    """The names on the front, fastest first."""
    on = [name for name, other in dominators(points).items() if other is None]
    return sorted(on, key=lambda name: (points[name], name))


def _dominates(one: Point, other: Point) -> bool:
    return one[0] <= other[0] and one[1] >= other[1] and one != other
