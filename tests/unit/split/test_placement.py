"""From what a job says to workers for every part."""

from __future__ import annotations

import pytest

from phalanx.errors import PlanError, SpecError
from phalanx.spec.split import SplitSpec
from phalanx.split.graph import NetworkGraph, NetworkPart
from phalanx.split.placement import choose
from phalanx.split.placement_search import PlacementProblem
from support.graphs import costs

GRAPH = NetworkGraph(
    (
        NetworkPart(name="left.conv", out_bytes=100, parameters=10, state_bytes=120),
        NetworkPart(name="left.dense", reads=(0,), out_bytes=8, parameters=10, state_bytes=120),
        NetworkPart(name="right", out_bytes=8, parameters=30, state_bytes=360),
        NetworkPart(name="trunk", reads=(1, 2), out_bytes=4, parameters=5, state_bytes=60),
    )
)
WORK = (1.0, 0.5, 1.4, 0.1)


def question(**settings: object) -> PlacementProblem:
    return PlacementProblem(graph=GRAPH, costs=costs(WORK, WORK), num_rows=8, **settings)  # type: ignore[arg-type]


def spec(**settings: object) -> SplitSpec:
    return SplitSpec.model_validate(settings)


def test_patterns_place_parts_and_the_first_match_counts() -> None:
    choice = choose(spec(placement={"left.dense": 1, "left.*": 0, "*": 1}), question())
    assert choice.forecast.places == {
        "left.conv": [0],
        "left.dense": [1],
        "right": [1],
        "trunk": [1],
    }
    assert choice.forecast.placement == "given"
    assert choice.forecast.sent_bytes == 2 * 8 * 100
    assert [one.placement for one in choice.others] == [
        "round_robin",
        "by_layers",
        "by_parameters",
        "data_parallel",
    ]


def test_planned_is_compared_with_the_naive_ones_and_is_no_worse() -> None:
    choice = choose(spec(), question())
    assert choice.proven
    naive = [one for one in choice.others if one.placement != "data_parallel"]
    assert all(choice.forecast.step_s <= other.step_s for other in naive)


def test_data_parallelism_is_forecast_from_the_same_numbers() -> None:
    other = choose(spec(), question()).others[-1]
    assert other.placement == "data_parallel"
    # Each worker computes half of everything, there and back, and sends all 55 weights once.
    assert other.busy_s == pytest.approx([sum(WORK) * 3 / 2] * 2)
    assert (other.activation_bytes, other.parameter_bytes) == (0, 2 * 55 * 4)


def test_replicated_parts_are_held_by_several_workers() -> None:
    choice = choose(spec(replicate={"left.*": (0, 1)}), question())
    assert choice.places[0] == choice.places[1] == (0, 1)
    assert choice.forecast.parameter_bytes == 2 * 20 * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"placement": {"left.*": 0}}, "leaves out part 'right' and 1 others"),
        ({"placement": {"rigth": 0, "*": 1}}, "names part 'rigth'.*did you mean 'right'"),
        ({"replicate": {"middle": (0, 1)}}, "names part 'middle', which the network does not"),
    ],
)
def test_parts_that_are_not_there_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        choose(spec(**settings), question())


def test_parts_that_share_weights_cannot_be_parted() -> None:
    tied = NetworkGraph(GRAPH.parts, tied=((0, 2),))
    asked = PlacementProblem(graph=tied, costs=costs(WORK, WORK), num_rows=8)
    with pytest.raises(SpecError, match=r"'left\.conv' and 'right' share weights"):
        choose(spec(placement={"left.*": 0, "*": 1}), asked)


def test_what_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(PlanError, match="placement 'given' does not fit: its parts on worker 1"):
        choose(spec(placement={"left.*": 0, "*": 1}), question(memory_bytes=(500.0, 400.0)))
