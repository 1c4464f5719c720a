"""Split networks in plans: predicted from an earlier run's parts, compared with copies."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.plan.explain import reasons
from phalanx.plan.facts import ClusterModel, PartsFacts
from phalanx.plan.predict import predict
from phalanx.plan.result import Prediction
from phalanx.plan.search import Objective, search
from phalanx.plan.split import placement_for
from phalanx.plan.workers import WorkerModels, worker_models
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.split import SplitSpec
from phalanx.split.graph import NetworkGraph, NetworkPart
from support.worlds import even, job, machine, on_machines, world

HALF = 5_000_000
PARTS = PartsFacts(
    graph=NetworkGraph(
        (
            NetworkPart(name="left", out_bytes=2048, parameters=HALF, state_bytes=16 * HALF),
            NetworkPart(name="right", out_bytes=2048, parameters=HALF, state_bytes=16 * HALF),
            NetworkPart(name="trunk", reads=(0, 1), out_bytes=40, parameters=1000),
        )
    ),
    forward_s=(0.1, 0.1, 0.01),
    backward_s=(0.2, 0.2, 0.02),
    run="earlier",
)


def known(where: ClusterModel) -> ClusterModel:
    return msgspec.structs.replace(where, parts=PARTS)


def predicted(where: ClusterModel, strategy: SplitSpec | AllreduceSpec) -> Prediction:
    found = predict(on_machines(2, strategy), where)
    assert isinstance(found, Prediction), found
    return found


def test_heavy_branches_with_thin_outputs_beat_copies_on_a_slow_network() -> None:
    where = known(even(2, num_parameters=2 * HALF, bandwidth=1.17e7))
    split, copies = predicted(where, SplitSpec()), predicted(where, AllreduceSpec())
    assert split.step_s.value < copies.step_s.value
    assert split.sent_bytes_per_step < copies.sent_bytes_per_step / 100
    assert split.family == "split"


def test_a_faster_machine_gets_the_heavier_part() -> None:
    heavy = msgspec.structs.replace(PARTS, forward_s=(0.3, 0.1, 0.01), backward_s=(0.6, 0.2, 0.02))
    where = world([machine("m0", 2e-3), machine("m1", 1e-3)], num_parameters=2 * HALF)
    where = msgspec.structs.replace(where, parts=heavy)
    group = worker_models(on_machines(2, SplitSpec()), where)
    assert isinstance(group, WorkerModels)
    choice = placement_for(group, SplitSpec(), where)
    assert not isinstance(choice, str)
    assert choice.forecast.places["left"] == [1]
    assert choice.forecast.places["right"] == [0]


def test_without_a_split_run_nothing_is_known_of_the_parts() -> None:
    found = predict(on_machines(2, SplitSpec()), even(2))
    assert isinstance(found, str)
    assert "train it once with 'strategy: split'" in found


@pytest.mark.parametrize("bandwidth", [1.17e7, 1.17e9])
def test_plans_compare_split_with_copies_and_say_why(bandwidth: float) -> None:
    where = known(even(0, num_parameters=2 * HALF, bandwidth=bandwidth, global_batch=128))
    findings = search(job(), where, Objective())
    text = " ".join(reasons(findings, where))
    assert "the network split over machines would be" in text
    assert {"split", "allreduce"} <= {one.candidate.strategy.name for one in findings.options}
