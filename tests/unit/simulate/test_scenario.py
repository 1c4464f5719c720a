"""Scenarios from a few figures: copies of machines, who is slow, what strategies come to."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.errors import SpecError
from phalanx.plan.facts import LinkFacts, NetworkFacts
from phalanx.simulate.perturbation import Crash, SlowMachine, Straggling
from phalanx.simulate.scenario import (
    DEFAULT_STRATEGIES,
    Figures,
    Scenario,
    SimulatedStrategy,
    Stragglers,
    _perturbations,
    replicate,
    run_scenario,
)
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import SwitchSpec
from support.worlds import machine, world

FIGURES = Figures(
    compute_s=0.1, num_parameters=100_000, bandwidth_bytes_per_s=1e10, latency_s=1e-6, jitter=0.0
)
ASYNC = ParameterServerSpec(dispatch="dynamic")


def run(scenario: Scenario, figures: Figures = FIGURES) -> dict[str, SimulatedStrategy]:
    found = run_scenario(scenario, DEFAULT_STRATEGIES, figures)
    return {one.strategy: one for one in found}


def test_without_exchange_to_speak_of_all_strategies_are_as_fast_as_their_computation() -> None:
    found = run(Scenario(workers=4, batch=32, rounds=10))
    assert len(found) == len(DEFAULT_STRATEGIES)
    for one in found.values():
        assert one.samples == 4 * 32 * 10
        assert one.samples_per_s == pytest.approx(4 * 32 / 0.1, rel=0.1)
        assert one.waiting_share < 0.1


def test_hundreds_of_workers_and_stragglers_hold_up_synchronous_strategies_only() -> None:
    calm = Scenario(workers=150, batch=8, rounds=3)
    slow = msgspec.structs.replace(calm, stragglers=Stragglers(share=0.02, factor=5.0))
    for strategy, least in ((AllreduceSpec(), 0.0), (ASYNC, 0.85)):
        before, after = (
            run_scenario(one, [strategy], FIGURES)[0].samples_per_s for one in (calm, slow)
        )
        assert after > least * before
        if least == 0:
            assert after < 0.35 * before


def test_more_workers_saturate_a_server() -> None:
    figures = msgspec.structs.replace(FIGURES, num_parameters=5_000_000, bandwidth_bytes_per_s=1e8)
    few, many = (
        run_scenario(Scenario(workers=n, batch=8, rounds=4), [ASYNC], figures)[0] for n in (2, 40)
    )
    assert many.samples_per_s < 3 * few.samples_per_s
    assert many.waiting_share > few.waiting_share
    assert many.staleness_mean > 10 * few.staleness_mean
    four = ParameterServerSpec(servers=4, dispatch="dynamic")
    (wider,) = run_scenario(Scenario(workers=40, batch=8, rounds=4), [four], figures)
    assert wider.samples_per_s > 2 * many.samples_per_s


def test_a_crash_loses_work_and_all_samples_are_done_all_the_same() -> None:
    hit = Scenario(workers=4, batch=8, rounds=10, crashes=(Crash(rank=1, at_s=0.35, back_s=1.5),))
    found = run(hit)
    assert found["allreduce"].lost > 0
    assert all(one.samples >= 4 * 8 * 10 for one in found.values())


def test_a_worker_that_is_not_there_cannot_crash() -> None:
    wrong = Scenario(workers=4, batch=8, crashes=(Crash(rank=4, at_s=1.0),))
    with pytest.raises(SpecError, match="no worker 4 to crash; workers are 0 to 3"):
        run(wrong)


def test_phases_of_a_switch_are_added_up() -> None:
    (found,) = run_scenario(Scenario(workers=3, batch=8, rounds=20), [SwitchSpec(at=0.5)], FIGURES)
    assert found.samples == 3 * 8 * 20
    assert found.strategy.startswith("switch allreduce to async")
    assert sum(found.staleness.values()) == 3 * 10


def test_stragglers_are_a_share_of_the_workers_the_same_for_equal_seeds() -> None:
    names = [f"m{i}" for i in range(20)]
    scenario = Scenario(workers=20, batch=1, stragglers=Stragglers(share=0.2, factor=3.0))
    slow = _perturbations(scenario, names)
    assert len(slow) == 4
    assert all(isinstance(one, SlowMachine) and one.factor == 3.0 for one in slow)
    assert _perturbations(scenario, names) == slow
    spells = Stragglers(share=0.01, factor=3.0, normal_s=10.0, slow_s=1.0)
    (one,) = _perturbations(msgspec.structs.replace(scenario, stragglers=spells), names)
    assert isinstance(one, Straggling)


def test_copies_of_machines_keep_speed_and_links() -> None:
    links = {"a": {"b": LinkFacts(latency_s=1e-3, bandwidth_bytes_per_s=1e6)}}
    where = msgspec.structs.replace(
        world([machine("a", 1e-3), machine("b", 2e-3)]), network=NetworkFacts(pairs=links)
    )
    many = replicate(where, 5)
    assert list(many.machines) == ["a", "b", "a-2", "b-2", "a-3"]
    assert many.machines["b-2"].fits == where.machines["b"].fits
    assert many.network.link("a-3", "b-2").bandwidth_bytes_per_s == 1e6
    assert many.network.link("a", "a-2").bandwidth_bytes_per_s == 1e6
