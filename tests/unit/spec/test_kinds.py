"""The table of strategies: built-ins, and kinds of a package that Phalanx does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.spec.job import JobSpec
from phalanx.spec.kinds import STRATEGIES, StrategyKind, kind_of
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.registry import load
from phalanx.spec.render import to_mapping, to_yaml
from phalanx.spec.strategy import Effect, ProcessCounts, StrategySpec
from phalanx.spec.switch import SwitchSpec
from support.plugins import PLUGINS

OUTSIDE = "phalanx_gossip.settings:GOSSIP"


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


@pytest.mark.parametrize("name", STRATEGIES.built_in)
def test_everything_that_a_built_in_kind_names_can_be_imported(name: str) -> None:
    kind = STRATEGIES.find(name)
    paths = (kind.step, kind.worker, kind.server, kind.evaluator, kind.coordinator, kind.predictor)
    for path in paths:
        assert not path or callable(load(path))
    assert kind.spec().name == name  # type: ignore[call-arg]
    assert kind_of(kind.spec()) is kind  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [OUTSIDE, "gossip"])
def test_a_job_takes_a_kind_of_another_package(name: str) -> None:
    job = job_from_mapping({"workers": 4, "strategy": {"name": name, "every": 3}})
    assert type(job.strategy).__name__ == "GossipSpec"
    assert job.strategy.exchange_every == 3
    assert job.processes == ProcessCounts(workers=4)
    assert job_from_mapping({"workers": 4, "strategy": name}).strategy.exchange_every == 1


@pytest.mark.parametrize("name", [OUTSIDE, "gossip"])
def test_such_a_job_survives_every_round_trip(name: str, tmp_path: Path) -> None:
    job = job_from_mapping({"workers": 4, "strategy": {"name": name, "every": 3}})
    assert JobSpec.model_validate_json(job.model_dump_json()) == job
    assert job_from_mapping(to_mapping(job)) == job
    (tmp_path / "job.yaml").write_text(to_yaml(job))
    assert load_job(tmp_path / "job.yaml") == job
    assert job.model_dump(mode="json", exclude_unset=True)["strategy"] == {"name": name, "every": 3}


def test_it_may_be_a_phase_of_a_switch() -> None:
    phases = ["allreduce", {"name": "gossip", "every": 2}]
    job = job_from_mapping(
        {"workers": 2, "strategy": {"name": "switch", "phases": phases, "at": 0.5}}
    )
    assert job.strategy.label() == "switch allreduce to gossip"
    assert JobSpec.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            "strategy:\n  name: gossip\n  evry: 2",
            3,
            "unknown key 'evry' in strategy; did you mean 'every'? (valid: every, name, seed)",
        ),
        (
            f"strategy:\n  name: {OUTSIDE}\n  every: 0",
            3,
            "strategy.every must be a whole number above 0, not 0",
        ),
        (
            "strategy: gossip\nworkers: 3",
            2,
            "gossip pairs workers up, but 3 are not even; set 'workers' to an even number",
        ),
        (
            "strategy: phalanx_gossip.settings:GOSIP",
            1,
            "module 'phalanx_gossip.settings' has no 'GOSIP'; did you mean 'GOSSIP'?",
        ),
        (
            "strategy: phalanx_gossip.settings:GossipSpec",
            1,
            "strategy 'phalanx_gossip.settings:GossipSpec' is ModelMetaclass, not StrategyKind",
        ),
        (
            "strategy:\n  name: no_such_package:KIND",
            2,
            "'no_such_package:KIND' cannot be imported: ModuleNotFoundError: No module named "
            "'no_such_package'",
        ),
        (
            "strategy: gosip",
            1,
            "unknown strategy 'gosip' (valid: single, allreduce, local_sgd, parameter_server, "
            "switch, split, mirrored, central_storage)",
        ),
    ],
)
def test_mistakes_are_told_with_their_line(
    text: str, line: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_job(file)
    assert str(caught.value) == f"{file}:{line}: {message}"


def test_settings_are_changed_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("workers: 2\nstrategy: gossip\n")
    assert load_job(file, overrides=["strategy.every=5"]).strategy.exchange_every == 5
    file.write_text("workers: 2\nstrategy: {name: local_sgd, every: 4, average_moments: false}\n")
    changed = load_job(file, overrides=[f"strategy.name={OUTSIDE}"]).strategy
    # What the new kind has too stays, the rest goes.
    assert changed.exchange_every == 4


def test_a_role_that_a_strategy_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match="no process of this version has the role 'server'"):
        STRATEGIES.find("allreduce").role("server")
    with pytest.raises(SpecError, match="role 'chief'"):
        STRATEGIES.find("parameter_server").role("chief")


APART = ParameterServerSpec(servers=3)
COLOCATED = ParameterServerSpec(servers="colocated")
SWITCH = SwitchSpec.model_validate(
    {"phases": ["allreduce", {"name": "parameter_server", "servers": 3}], "at": 0.5}
)


@pytest.mark.parametrize(
    ("strategy", "counts", "num_servers"),
    [
        (SingleSpec(), ProcessCounts(4), 0),
        (AllreduceSpec(), ProcessCounts(4), 0),
        (APART, ProcessCounts(4, servers=3, evaluators=1), 3),
        (COLOCATED, ProcessCounts(4, servers=0, evaluators=1), 4),
        (SwitchSpec(), ProcessCounts(4, servers=0, evaluators=1), 0),
        (SWITCH, ProcessCounts(4, servers=3, evaluators=1), 0),
        (STRATEGIES.find("mirrored").spec(), ProcessCounts(1), 0),  # type: ignore[call-arg]
    ],
)
def test_processes(strategy: StrategySpec, counts: ProcessCounts, num_servers: int) -> None:
    assert strategy.processes(4) == counts
    assert strategy.num_servers(4) == num_servers


@pytest.mark.parametrize(
    ("strategy", "effect", "label"),
    [
        (SingleSpec(), "exact", "single"),
        (AllreduceSpec(), "exact", "allreduce"),
        (AllreduceSpec(compression="bf16"), "rounded", "allreduce, bf16"),
        (LocalSgdSpec(every=4), "stale", "local_sgd every 4"),
        (ParameterServerSpec(consistency="bsp"), "exact", "parameter_server bsp"),
        (COLOCATED, "stale", "parameter_server async"),
        (ParameterServerSpec(consistency="ssp"), "stale", "parameter_server ssp 3"),
        (
            ParameterServerSpec(consistency="k_sync", k=2, compression="int8"),
            "stale",
            "parameter_server k_sync k=2, int8",
        ),
        (SWITCH, "stale", "switch allreduce to async"),
    ],
)
def test_effects_and_labels(strategy: StrategySpec, effect: Effect, label: str) -> None:
    assert (strategy.effect, strategy.label()) == (effect, label)


def test_placement_does_not_make_another_strategy() -> None:
    assert APART.equals_but_for_placement(ParameterServerSpec(dispatch="dynamic"))
    assert not APART.equals_but_for_placement(ParameterServerSpec(consistency="bsp"))
    assert not APART.equals_but_for_placement(AllreduceSpec())
    assert not AllreduceSpec().equals_but_for_placement(APART)


def test_a_kind_is_plain_data() -> None:
    kind = StrategyKind(name="own", spec=AllreduceSpec)
    assert kind.worker.startswith("phalanx.worker.")
    assert kind.coordinator.startswith("phalanx.control.")
    assert not kind.predictor
