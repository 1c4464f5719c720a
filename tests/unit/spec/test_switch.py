"""Jobs that switch: every way to name a moment, the short forms, and each refusal in a sentence."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.spec.lockstep import AllreduceSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import LOOSENED, PhaseSpec, SwitchSpec, phase_job, strategy_of

MILESTONES = {"name": "milestones", "at": [0.5, 0.75]}


def switch_of(strategy: object, **fields: Any) -> SwitchSpec:
    job = job_from_mapping({"epochs": 4, "workers": 2, "strategy": strategy, **fields})
    assert isinstance(job.strategy, SwitchSpec)
    return job.strategy


def phases(*moments: dict[str, object], first: str = "allreduce") -> dict[str, object]:
    later = [{"strategy": "parameter_server", **moment} for moment in moments]
    return {"name": "switch", "phases": [{"strategy": first}, *later]}


def refusal(strategy: object, **fields: Any) -> str:
    with pytest.raises(SpecError) as caught:
        switch_of(strategy, **fields)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("short", "moment"),
    [
        ("switch", {"at": 0.5}),
        ({"name": "switch"}, {"at": 0.5}),
        ({"name": "switch", "at": 0.25}, {"at": 0.25}),
        ({"name": "switch", "at": "auto"}, {"at": "auto"}),
        ({"name": "switch", "epoch": 1.5}, {"epoch": 1.5}),
        ({"name": "switch", "lr_drop": 2}, {"lr_drop": 2}),
    ],
)
def test_short_forms_stand_for_two_phases(short: object, moment: dict[str, Any]) -> None:
    second = ParameterServerSpec(servers="colocated", dispatch="dynamic")
    assert second.consistency == "async"
    assert switch_of(short, schedule=MILESTONES).resolved == (
        PhaseSpec(strategy=AllreduceSpec()),
        PhaseSpec(strategy=second, **moment),
    )


@pytest.mark.parametrize(
    "written",
    [
        {"phases": ["allreduce", {"name": "parameter_server", "staleness": 3}], "at": 0.5},
        {"phases": ["allreduce", {"name": "parameter_server", "at": 0.5}]},
        {"phases": ["allreduce", "parameter_server"], "at": [0.5]},
        {"phases": [{"strategy": "allreduce"}, "parameter_server"], "at": 0.5},
        {"phases": ["allreduce", {"strategy": "parameter_server"}], "at": 0.5},
    ],
)
def test_a_phase_may_be_a_strategy_and_its_moment_stand_beside(written: dict[str, object]) -> None:
    switch = switch_of({"name": "switch", **written})
    assert switch == switch_of(phases({"at": 0.5}))
    assert switch_of(switch.model_dump(mode="json")) == switch


def test_moments_beside_the_list_go_to_the_phases_in_order() -> None:
    strategies = ["allreduce", "local_sgd", "parameter_server"]
    switch = switch_of({"name": "switch", "phases": strategies, "epoch": [1, 2.5]})
    assert [phase.epoch for phase in switch.resolved] == [None, 1.0, 2.5]
    assert [phase.strategy.name for phase in switch.resolved] == strategies


def test_the_short_form_reads_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("workers: 2\nstrategy: {name: switch, at: 0.5}\n")
    strategy = load_job(tmp_path / "job.yaml").strategy
    assert isinstance(strategy, SwitchSpec)
    assert strategy.resolved == switch_of("switch").resolved


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (phases({}), "phase 2 does not say when it begins; give it at, epoch or lr_drop"),
        (
            {"name": "switch", "at": 0.5, "epoch": 2},
            "at and epoch both say when the phase begins; give one of at, epoch and lr_drop",
        ),
        (
            phases({"at": 0.5}) | {"at": 0.5},
            "strategy.at and at of phase 2 both say when it begins; give one of them",
        ),
        (
            phases({}, {}) | {"at": 0.5},
            "strategy.at has 1 moment, but 3 phases need 2, one for each but the first",
        ),
        (
            phases({}, {}) | {"epoch": [1, 2, 3]},
            "strategy.epoch has 3 moments, but 3 phases need 2, one for each but the first",
        ),
        (
            phases({"epoch": 1}) | {"at": 0.5},
            "strategy.at and epoch of phase 2 both say when it begins; give one of them",
        ),
        (
            {"name": "switch", "phases": ["allreduce", "parameter_servr"], "at": 0.5},
            "unknown strategy.phases.1.strategy 'parameter_servr'; did you mean "
            "'parameter_server'? (valid: single, allreduce, local_sgd, parameter_server)",
        ),
        (
            {"name": "switch", "phases": ["allreduce", 3], "at": 0.5},
            "strategy.phases.1 must be a mapping with strategy, at, epoch or lr_drop, not 3",
        ),
        (
            {"name": "switch", "phases": ["allreduce", "split"], "at": 0.5},
            "unknown strategy.phases.1.strategy 'split' (valid: single, allreduce, local_sgd, "
            "parameter_server)",
        ),
        (
            {"name": "switch", "phases": "allreduce", "at": 0.5},
            "strategy.phases must be a list, each entry a mapping with strategy, at, epoch or "
            "lr_drop, not 'allreduce'; write [allreduce]",
        ),
        (
            {"name": "switch", "phases": [{"strategy": "allreduce"}]},
            "strategy.phases takes at least two phases",
        ),
        (
            {"name": "switch", "phases": [{"strategy": "allreduce", "at": 0.1}] * 2},
            "the first phase begins at once and takes no moment",
        ),
        (
            phases({"at": "auto"}, first="local_sgd"),
            "phase 2 begins by itself, which needs the gradients of an allreduce phase before it, "
            "not of local_sgd; give it at, epoch or lr_drop",
        ),
        (
            phases({"epoch": 4}),
            "a phase is to begin after epoch 4, but the job ends after 4",
        ),
        (
            phases({"lr_drop": 1}),
            "lr_drop needs a schedule with decays, not 'constant'; set 'schedule: {name: "
            "milestones, at: [0.5, 0.75]}' or use 'at'",
        ),
        (
            phases({"at": 0.6}, {"epoch": 2}),
            "phase 3 begins after 0.5 of the samples, but phase 2 after 0.6; phases come in the "
            "order of their moments",
        ),
        (
            {"name": "switch", "at": "auto", "handover": "restart"},
            "handover: restart is there to compare with and does not go with 'at: auto'; use "
            "'handover: live'",
        ),
        (
            {"name": "switch", "momentum": "zero", "handover": "restart"},
            "handover: restart is there to compare with and does not go with 'momentum: zero'; "
            "use 'handover: live'",
        ),
        (
            {"name": "switch", "phases": [{"strategy": "single"}, {"strategy": "s", "at": 0.5}]},
            "unknown strategy.phases.1.strategy 's' (valid: single, allreduce, local_sgd, "
            "parameter_server)",
        ),
        (
            {"name": "switch", "straggler": {"max_changes": 1}},
            "strategy.straggler.max_changes must be a whole number of at least 2, not 1",
        ),
    ],
)
def test_refusals(strategy: object, message: str) -> None:
    assert refusal(strategy) == message


def test_a_decay_that_never_comes_is_refused() -> None:
    assert refusal(phases({"lr_drop": 3}), schedule=MILESTONES) == (
        "lr_drop 3 never comes: the schedule has 2 decays"
    )


def test_settings_that_a_phase_cannot_have_are_refused() -> None:
    assert refusal("switch", data={"name": "digits", "shard": "file"}).endswith("'shard: auto'")
    assert "clip_norm" in refusal("switch", optimizer={"name": "sgd", "clip_norm": 1.0})
    assert refusal("switch", inject=[{"rank": 2}]) == (
        "inject names rank 2, but the 2 workers have ranks up to 1"
    )
    assert refusal("switch", inject=[{"rank": 0, "begin": 0.5, "end": 0.5}]).startswith(
        "inject.end (0.5) is not after inject.begin (0.5)"
    )


def test_a_phase_is_the_job_with_its_strategy() -> None:
    job = job_from_mapping(
        {
            "workers": 2,
            "batch": {"per_worker": 32},
            "strategy": {"name": "switch", "straggler": {"loosen_to": "local_sgd"}},
        }
    )
    first, second = (phase_job(job, phase) for phase in range(2))
    assert (first.strategy.name, second.strategy.name) == ("allreduce", "parameter_server")
    assert strategy_of(job, LOOSENED).name == "local_sgd"
    uneven = phase_job(job, 0, (1.5, 0.5))
    assert (uneven.global_batch, uneven.batch.shares) == (64, (1.5, 0.5))
    assert first.model_copy(update={"strategy": job.strategy}) == job
