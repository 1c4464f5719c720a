"""Compute naive placements as baselines: what a person writes first."""

from __future__ import annotations

from phalanx.spec.split import NaivePlacement
from phalanx.split.graph import NetworkGraph, Places, one_each

NAIVE: tuple[NaivePlacement, ...] = ("round_robin", "by_layers", "by_parameters")


def naive_places(kind: NaivePlacement, graph: NetworkGraph, num_workers: int) -> Places:
    """Return the placement of that name; parts that share weights follow the first of them."""
    if kind == "round_robin":
        found = [number % num_workers for number in range(len(graph.parts))]
    elif kind == "by_layers":
        found = _contiguous([1.0] * len(graph.parts), num_workers)
    else:
        found = _contiguous([float(part.parameters) for part in graph.parts], num_workers)
    for group in graph.tied:
        for number in group:
            found[number] = found[group[0]]
    return one_each(found)


def _contiguous(weights: list[float], num_workers: int) -> list[int]:
    """Cut parts into contiguous blocks of about equal weight."""
    total = sum(weights) or 1.0
    found: list[int] = []
    before = 0.0
    for weight in weights:
        middle = (before + weight / 2) / total
        found.append(min(num_workers - 1, int(middle * num_workers)))
        before += weight
    return found
