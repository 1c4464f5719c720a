"""The plan as a record: its job, its words, and what it is compared with afterwards."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phalanx.errors import SpecError
from phalanx.plan.explain import choice_sentence, reasons
from phalanx.plan.facts import ClusterModel
from phalanx.plan.placement import Seat, job_of
from phalanx.plan.planfile import (
    Plan,
    compare_with_run,
    plan_without,
    planned_job,
    read_plan,
    record_plan,
    write_plan,
)
from phalanx.plan.search import Objective, PlanSearchResult, search
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.program import PRECISION
from support.worlds import GIB, fit, job, machine, short_summary, world

JOB = job()


def planned(where: ClusterModel, **objective: object) -> tuple[Plan, PlanSearchResult]:
    findings = search(JOB, where, Objective(**objective))  # type: ignore[arg-type]
    return record_plan(JOB, findings, where), findings


def test_a_plan_reads_back_as_it_was_written(tmp_path: Path) -> None:
    plan, _ = planned(world([machine("ada", price_per_hour=0.5), machine("bob", 2e-3)]))
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


def test_the_job_has_the_chosen_settings() -> None:
    plan, findings = planned(
        world([machine("ada", 1e-3), machine("bob", 3e-3)], bandwidth=1e9), accept="exact"
    )
    spec = job_from_mapping(plan.job)
    assert spec.workers == 2
    assert spec.global_batch == 256
    assert spec.batch.shares is not None
    assert [float(n) for seat in plan.seats for n in seat.batches] == list(spec.batch.shares)
    assert spec.strategy == findings.chosen.candidate.strategy


def test_a_script_is_given_its_shares_and_nothing_that_it_says_itself() -> None:
    script = job_from_mapping({"program": {"script": "train.py", "args": ["--lr", "1"]}})
    fits = [msgspec.structs.replace(fit(speed), precision=PRECISION) for speed in (1e-3, 3e-3)]
    machines = [machine("ada", fits=(fits[0],)), machine("bob", fits=(fits[1],))]
    where = world(machines, bandwidth=1e9)
    findings = search(script, where, Objective(accept="exact"))
    plan = record_plan(script, findings, where)
    spec = job_from_mapping(plan.job)
    assert spec.program is not None
    assert (spec.workers, spec.strategy.name) == (2, "allreduce")
    assert list(spec.program.shares or ()) == [
        float(size) for seat in plan.seats for size in seat.batches
    ]
    assert spec.program.shares != spec.program.shares[::-1]  # type: ignore[index]
    for option in findings.options:
        if option.refusal is None:
            assert job_of(script, option.candidate).program is not None
    less = job_from_mapping(plan_without(plan, ["bob"]).job)
    assert less.program is not None
    assert (less.workers, len(less.program.shares or ())) == (1, 1)
    # Streams of their own cannot be shared out unequally.
    job_facts = msgspec.structs.replace(where.job, splits_evenly=True)
    even = search(script, msgspec.structs.replace(where, job=job_facts), Objective(accept="exact"))
    assert all(
        len({size for seat in one.candidate.seats for size in seat.batches}) == 1
        for one in even.options
    )


def test_only_plans_for_this_machine_start_here() -> None:
    plan, _ = planned(world([machine("ada")]))
    assert planned_job(plan, "ada").workers == 1
    with pytest.raises(SpecError, match="gives work to ada, and this machine is bob; name"):
        planned_job(plan, "bob")
    assert planned_job(msgspec.structs.replace(plan, pool="pool.yaml"), "bob").workers == 1


def test_the_others_do_the_work_of_a_machine_that_is_left_out() -> None:
    plan, _ = planned(
        world([machine("ada", 1e-3), machine("bob", 3e-3), machine("eve", 3e-3)], bandwidth=1e9),
        accept="exact",
    )
    assert set(plan.machines) == {"ada", "bob", "eve"}
    left = plan_without(plan, ["bob"])
    assert left.machines == ("ada", "eve")
    spec = job_from_mapping(left.job)
    assert (spec.workers, spec.global_batch) == (2, 256)
    assert spec.batch.shares is not None
    assert list(spec.batch.shares) == [float(n) for seat in left.seats for n in seat.batches]
    assert plan_without(plan, ["zoe"]) == plan
    with pytest.raises(SpecError, match="no worker of the plan is left"):
        plan_without(plan, ["ada", "bob", "eve"])


def test_servers_of_a_machine_that_is_left_out_move() -> None:
    plan, _ = planned(world([machine("ada"), machine("bob")], bandwidth=1e9))
    seats = (
        Seat(machine="ada", batches=(128,)),
        Seat(machine="bob", batches=(128,), servers=2, evaluator=True),
    )
    [seat] = plan_without(msgspec.structs.replace(plan, seats=seats), ["bob"]).seats
    assert (seat.machine, seat.servers, seat.evaluator) == ("ada", 2, True)


@pytest.mark.parametrize("content", [b"{}", b"nonsense", b"[1]"])
def test_what_is_no_plan_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(SpecError, match="is no plan; make one with `phalanx plan -o"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(SpecError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json")


def test_one_machine_is_explained_by_what_several_would_lose() -> None:
    _, findings = planned(world([machine("ada"), machine("bob")], bandwidth=1e6))
    sentence = choice_sentence(findings)
    assert sentence.startswith("Use ada alone: ")
    assert "one machine is fastest: ada, bob with" in sentence
    assert "for exchange and waiting" in sentence


def test_several_machines_are_explained_by_what_one_would_take() -> None:
    where = world([machine("ada"), machine("bob", 2e-3)], bandwidth=1e9)
    _, findings = planned(where)
    assert "times as fast as the best single machine, ada" in choice_sentence(findings)
    texts = reasons(findings, where)
    assert any(text.startswith("a step takes") for text in texts)
    assert any(text.startswith("batches follow speed: ada gets") for text in texts)


def test_a_cheap_choice_admits_that_others_are_faster() -> None:
    where = world(
        [machine("ada", price_per_hour=1.0), machine("bob", price_per_hour=5.0)], bandwidth=1e9
    )
    _, findings = planned(where, goal="cost")
    assert findings.chosen.machines == ("ada",)
    assert "the best for cost, although ada, bob would be" in choice_sentence(findings)
    assert any("all 2 machines would take" in text for text in reasons(findings, where))


def test_refusals_and_looser_strategies_are_told() -> None:
    where = world(
        [machine("ada"), machine("bob"), machine("eve", memory_bytes=GIB // 8)], bandwidth=2e7
    )
    plan, _ = planned(where, accept="exact")
    assert any("--accept stale" in text for text in plan.reasons)
    assert any("on eve, which has 0.1 GiB free" in text for text in plan.reasons)
    assert any(row.refused for row in plan.candidates)
    assert plan.candidates[0].prediction == plan.prediction


def test_predicted_and_measured_stand_side_by_side() -> None:
    plan, _ = planned(world([machine("ada")]))
    rows = {row.measure: row for row in compare_with_run(plan, short_summary(256, 1))}
    assert rows["training"].measured == 12.0
    assert rows["training"].error == pytest.approx(12.0 / plan.prediction.train_s.value - 1)
    assert rows["training"].is_inside is False
    assert "energy" not in rows
    assert "step" not in rows
