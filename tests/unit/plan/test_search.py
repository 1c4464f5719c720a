"""The search against brute force on random small pools, and what a better pool must never spoil."""

from __future__ import annotations

import math
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import PlanError
from phalanx.plan.facts import ClusterModel
from phalanx.plan.predict import predict
from phalanx.plan.result import Prediction
from phalanx.plan.search import GOALS, INDISTINCT, Goal, Objective, PlanSearchResult, search
from phalanx.plan.subsets import by_speed, machine_sets
from phalanx.plan.variants import EFFECTS, variants
from support.worlds import job, machine, random_worlds, world

JOB = job()
goals = st.sampled_from(GOALS)


def score(prediction: Prediction, goal: Goal) -> float:
    assert prediction.cost is not None
    assert prediction.energy_j is not None
    time_s, cost, energy = (
        one.value for one in (prediction.total_s, prediction.cost, prediction.energy_j)
    )
    return {"time": time_s, "cost": cost, "energy": energy, "balanced": time_s * cost * energy}[
        goal
    ]


def brute_force(where: ClusterModel, objective: Objective) -> float | None:
    """The best score over every set of machines and every variant, with no cleverness."""
    names = [one.name for one in by_speed(where)]
    best = math.inf
    accepted = EFFECTS[: EFFECTS.index(objective.accept) + 1]
    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            for variant in variants(chosen, JOB, where, effects=accepted):
                found = predict(variant.candidate, where)
                if isinstance(found, str):
                    continue
                assert found.cost is not None
                if objective.deadline_s is not None and found.total_s.high > objective.deadline_s:
                    continue
                if objective.budget is not None and found.cost.high > objective.budget:
                    continue
                best = min(best, score(found, objective.goal))
    return None if math.isinf(best) else best


def found_score(findings: PlanSearchResult) -> float:
    assert findings.chosen.prediction is not None
    return score(findings.chosen.prediction, findings.objective.goal)


@settings(max_examples=40)
@given(random_worlds(), goals, st.sampled_from(EFFECTS), st.data())
def test_nothing_is_better_than_what_is_chosen(
    where: ClusterModel, goal: Goal, accept: str, data: st.DataObject
) -> None:
    objective = Objective(
        goal=goal,
        accept=accept,  # type: ignore[arg-type]
        deadline_s=data.draw(st.none() | st.floats(20.0, 2000.0)),
        budget=data.draw(st.none() | st.floats(0.001, 1.0)),
    )
    best = brute_force(where, objective)
    if best is None:
        with pytest.raises(PlanError):
            search(JOB, where, objective)
        return
    findings = search(JOB, where, objective)
    assert findings.complete
    assert found_score(findings) <= best * (1 + INDISTINCT) * (1 + 1e-9)
    assert found_score(findings) >= best * (1 - 1e-9)


@settings(max_examples=15)
@given(random_worlds(most=5), goals)
def test_without_looking_at_all_sets_it_comes_close(where: ClusterModel, goal: Goal) -> None:
    objective = Objective(goal=goal)
    best = brute_force(where, objective)
    if best is None:
        return
    findings = search(JOB, where, objective, limit=0)
    assert found_score(findings) <= best * 1.1


@settings(max_examples=20)
@given(random_worlds(), st.floats(0.3, 1.0), st.integers(0, 3))
def test_a_faster_machine_never_makes_the_best_plan_slower(
    where: ClusterModel, share: float, which: int
) -> None:
    name = sorted(where.machines)[which % len(where.machines)]
    old = where.machines[name]
    new = msgspec.structs.replace(old, fits=tuple(fit.scaled(share) for fit in old.fits))
    better = msgspec.structs.replace(where, machines=dict(where.machines) | {name: new})
    objective = Objective(goal="time")
    before, after = brute_force(where, objective), brute_force(better, objective)
    if before is not None:
        # Cuts follow the mean times, jitter does not: a hundredth may go the wrong way.
        assert after is not None
        assert after <= before * 1.01


@settings(max_examples=15)
@given(random_worlds(), st.floats(1.0, 30.0))
def test_more_bandwidth_never_makes_the_best_plan_slower(where: ClusterModel, more: float) -> None:
    link = where.network.between
    wider = msgspec.structs.replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * more)
    network = msgspec.structs.replace(where.network, between=wider)
    objective = Objective(goal="time", accept="stale")
    before = brute_force(where, objective)
    after = brute_force(msgspec.structs.replace(where, network=network), objective)
    if before is not None:
        assert after is not None
        assert after <= before * (1 + 1e-6)


@settings(max_examples=15)
@given(random_worlds(), st.floats(1.0, 10.0))
def test_dearer_machines_never_make_the_cheapest_plan_cheaper(
    where: ClusterModel, more: float
) -> None:
    machines = {
        name: msgspec.structs.replace(one, price_per_hour=(one.price_per_hour or 0) * more)
        for name, one in where.machines.items()
    }
    objective = Objective(goal="cost")
    before = brute_force(where, objective)
    after = brute_force(msgspec.structs.replace(where, machines=machines), objective)
    if before is not None:
        assert after == pytest.approx(before * more)


@settings(max_examples=15)
@given(random_worlds())
def test_the_front_holds_the_best_of_each_and_nothing_beaten(where: ClusterModel) -> None:
    try:
        findings = search(JOB, where, Objective(accept="stale"))
    except PlanError:
        return
    feasible = [one.prediction for one in findings.options if one.refusal is None]
    on_front = [one.prediction for one in findings.front]
    known = [one for one in feasible if one is not None]
    for goal in ("time", "cost", "energy"):
        best = min(score(one, goal) for one in known)
        assert min(score(one, goal) for one in on_front if one is not None) == best
    for one in on_front:
        assert one is not None
        assert not any(
            all(score(other, goal) < score(one, goal) for goal in ("time", "cost", "energy"))
            for other in known
        )


def test_one_machine_is_a_possible_answer() -> None:
    slow_link = world([machine("ada"), machine("bob")], bandwidth=1e6)
    findings = search(JOB, slow_link, Objective())
    assert findings.chosen.machines == ("ada",)
    assert findings.chosen.candidate.strategy.name == "single"


def test_unequal_machines_get_unequal_batches() -> None:
    where = world([machine("ada", 1e-3), machine("bob", 3e-3)], bandwidth=1e9)
    chosen = search(JOB, where, Objective(accept="exact")).chosen
    sizes = {seat.machine: sum(seat.batches) for seat in chosen.candidate.seats}
    assert sizes["ada"] + sizes["bob"] == 256
    assert 2.5 < sizes["ada"] / sizes["bob"] < 3.5


def test_stale_strategies_need_to_be_allowed() -> None:
    where = world([machine(f"m{i}") for i in range(4)], bandwidth=2e7)
    strict = search(JOB, where, Objective(accept="exact")).chosen
    loose = search(JOB, where, Objective(accept="stale")).chosen
    assert strict.effect == "exact"
    assert loose.effect == "stale"
    assert loose.prediction is not None
    assert strict.prediction is not None
    assert loose.prediction.total_s.value < strict.prediction.total_s.value


def test_the_jobs_own_strategy_is_allowed() -> None:
    own = job(workers=2, strategy={"name": "local_sgd", "every": 4})
    where = world([machine("ada"), machine("bob")])
    options = search(own, where, Objective(accept="exact")).options
    allowed = {one.candidate.strategy for one in options if one.refusal is None}
    assert own.strategy in allowed
    refused = [one.refusal for one in options if one.candidate.strategy.name == "switch"]
    assert refused == ["gradients about 1.0 updates old; --accept stale allows it"]


def test_servers_are_left_out_where_workers_must_step_together() -> None:
    where = world([machine("ada"), machine("bob")])
    facts = msgspec.structs.replace(where.job, in_step_only=True)
    bound = msgspec.structs.replace(where, job=facts)
    options = search(JOB, bound, Objective(accept="stale")).options
    names = {one.candidate.strategy.name for one in options}
    assert names == {"single", "allreduce", "local_sgd"}


def test_what_the_job_forbids_is_refused_with_its_reason() -> None:
    clipped = job(optimizer={"name": "sgd", "clip_norm": 1.0})
    where = world([machine("ada"), machine("bob")])
    findings = search(clipped, where, Objective(accept="stale"))
    reasons = [one.refusal for one in findings.options if one.prediction is None]
    assert any("clip_norm" in reason for reason in reasons if reason)


def test_unpriced_pools_cannot_be_planned_for_cost() -> None:
    where = world([machine("ada")])
    with pytest.raises(PlanError, match="price_per_hour"):
        search(JOB, where, Objective(goal="cost"))
    with pytest.raises(PlanError, match="price_per_hour"):
        search(JOB, where, Objective(budget=5.0))
    with pytest.raises(PlanError, match="watts_full"):
        search(JOB, where, Objective(goal="energy"))


def test_impossible_limits_say_what_would_be_possible() -> None:
    where = world([machine("ada", price_per_hour=1.0)])
    with pytest.raises(PlanError, match=r"the fastest may take .*; the deadline is 10 s"):
        search(JOB, where, Objective(deadline_s=10.0))
    with pytest.raises(PlanError, match=r"the cheapest may cost .*; the budget is 0.01"):
        search(JOB, where, Objective(budget=0.01))


def test_hundreds_of_machines() -> None:
    machines = [
        machine(f"m{i:03}", 1e-3 * (1 + (i * 7919 % 100) / 50), price_per_hour=0.1 + i % 5)
        for i in range(300)
    ]
    where = world(machines, bandwidth=1e9, global_batch=4096)
    findings = search(JOB, where, Objective())
    assert not findings.complete
    assert len(findings.options) > 500
    assert findings.chosen.prediction is not None
    alone = search(JOB, world(machines[:1], bandwidth=1e9, global_batch=4096), Objective())
    assert alone.chosen.prediction is not None
    assert findings.chosen.prediction.total_s.value < alone.chosen.prediction.total_s.value / 5


def test_equal_machines_are_counted_not_listed() -> None:
    sets, complete = machine_sets(world([machine(f"m{i}") for i in range(100)]))
    assert complete
    assert len(sets) == 100
