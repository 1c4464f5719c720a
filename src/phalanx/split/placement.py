"""Choose the workers of every part from a job's settings; forecast naive placements too."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from phalanx.errors import PlanError, SpecError
from phalanx.spec.names import did_you_mean
from phalanx.spec.split import SplitSpec
from phalanx.split.graph import NetworkGraph, Places, total_of
from phalanx.split.placement_search import (
    NAIVE,
    PlacementProblem,
    memory_fault,
    memory_needs,
    naive_places,
    plan_places,
)

GIVEN = "given"
DATA_PARALLEL = "data_parallel"


class SplitForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of a placement, for one training step."""

    placement: str
    places: dict[str, list[int]]
    """The workers of each part."""
    step_s: float
    busy_s: list[float]
    """Compute time of each worker."""
    imbalance: float
    """The busiest worker's time over the mean of those that hold parts."""
    activation_bytes: int
    gradient_bytes: int
    parameter_bytes: int
    """Gradients of weights, between workers that hold the same part."""
    messages: int
    memory_bytes: list[int]
    """Memory that each worker needs for its parts."""

    @property
    def sent_bytes(self) -> int:
        """All bytes sent between workers."""
        return self.activation_bytes + self.gradient_bytes + self.parameter_bytes


class PlacementChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The placement for a job."""

    places: Places
    forecast: SplitForecast
    others: list[SplitForecast]
    """Of the placements that were not chosen, for comparison."""
    proven: bool
    """Whether a planned placement is known to be the best."""


def choose(spec: SplitSpec, question: PlacementProblem) -> PlacementChoice:
    """Choose the workers of every part.

    Raises:
        SpecError: The job names parts that do not exist, or leaves some out.
        PlanError: The placement does not fit into the workers' memory.
    """
    graph, num_workers = question.graph, question.costs.num_workers
    fixed = _replicated(spec, graph)
    question = msgspec.structs.replace(question, fixed=fixed)
    proven = False
    name: str = GIVEN if isinstance(spec.placement, dict) else spec.placement
    if isinstance(spec.placement, dict):
        places = _given(spec.placement, graph, fixed)
    elif spec.placement == "planned":
        answer = plan_places(question)
        places, proven = answer.places, answer.proven
    else:
        places = _with(naive_places(spec.placement, graph, num_workers), fixed)
    _check_tied(graph, places)
    fault = memory_fault(question, places)
    if fault is not None:
        raise PlanError(f"placement '{name}' does not fit: {fault}")
    others = [
        forecast(kind, question, _with(naive_places(kind, graph, num_workers), fixed))
        for kind in NAIVE
        if kind != name
    ]
    if num_workers > 1:
        # Data parallelism: each worker computes its share of the batch, gradients are summed.
        everyone = (tuple(range(num_workers)),) * len(graph.parts)
        others.append(forecast(DATA_PARALLEL, question, everyone))
    return PlacementChoice(
        places=places, forecast=forecast(name, question, places), others=others, proven=proven
    )


def forecast(name: str, question: PlacementProblem, places: Places) -> SplitForecast:
    """Return the forecast of a placement."""
    timeline = question.simulate(places)
    traffic = total_of(question.traffic(places))
    return SplitForecast(
        placement=name,
        places={
            part.name: list(workers)
            for part, workers in zip(question.graph.parts, places, strict=True)
        },
        step_s=timeline.step_s,
        busy_s=list(timeline.busy_s),
        imbalance=timeline.imbalance,
        activation_bytes=traffic.activations,
        gradient_bytes=traffic.gradients,
        parameter_bytes=traffic.parameters,
        messages=traffic.messages,
        memory_bytes=[int(need) for need in memory_needs(question, places)],
    )


def _replicated(spec: SplitSpec, graph: NetworkGraph) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for pattern, workers in spec.replicate.items():
        for number in _matching(pattern, graph, "replicate"):
            found.setdefault(number, tuple(workers))
    return found


def _given(
    wanted: Mapping[str, int], graph: NetworkGraph, fixed: Mapping[int, tuple[int, ...]]
) -> Places:
    found: dict[int, tuple[int, ...]] = dict(fixed)
    for pattern, worker in wanted.items():
        for number in _matching(pattern, graph, "placement"):
            found.setdefault(number, (worker,))
    missing = [part.name for number, part in enumerate(graph.parts) if number not in found]
    if missing:
        raise SpecError(
            f"strategy.placement leaves out part '{missing[0]}'"
            f"{f' and {len(missing) - 1} others' if len(missing) > 1 else ''}; the network has "
            f"{_listed(graph)}"
        )
    return tuple(found[number] for number in range(len(graph.parts)))


def _matching(pattern: str, graph: NetworkGraph, key: str) -> list[int]:
    found = [number for number, part in enumerate(graph.parts) if fnmatchcase(part.name, pattern)]
    if not found:
        names = [part.name for part in graph.parts]
        raise SpecError(
            f"strategy.{key} names part '{pattern}', which the network does not have"
            f"{did_you_mean(pattern, names)}; it has {_listed(graph)}"
        )
    return found


def _listed(graph: NetworkGraph) -> str:
    return ", ".join(part.name for part in graph.parts)


def _with(places: Places, fixed: Mapping[int, tuple[int, ...]]) -> Places:
    return tuple(fixed.get(number, place) for number, place in enumerate(places))


def _check_tied(graph: NetworkGraph, places: Places) -> None:
    for group in graph.tied:
        first = places[group[0]]
        for number in group:
            if places[number] != first:
                raise SpecError(
                    f"parts '{graph.parts[group[0]].name}' and '{graph.parts[number].name}' share "
                    "weights, so they must be on the same worker"
                )
