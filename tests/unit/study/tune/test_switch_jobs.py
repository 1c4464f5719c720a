from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.spec.loader import job_from_mapping, load_job
from phalanx.study.tune.policy import SYNCHRONOUS
from phalanx.study.tune.search_plan import accuracy_of, as_file, check_tunable, with_bar, with_share

SERVERS = {"name": "parameter_server", "servers": 1, "dispatch": "dynamic"}
BASE = {"workers": 2, "epochs": 10, "schedule": {"name": "milestones", "at": [0.5]}}
BACK = {"strategy": "allreduce", "at": 0.9}
PHASES = [{"strategy": "local_sgd"}, {"strategy": SERVERS, "lr_drop": 1}]


@pytest.mark.parametrize(
    ("given", "synchronous", "switched"),
    [
        ({}, "allreduce", {"name": "switch", "at": 0.25}),
        ({"strategy": "switch"}, "allreduce", {"name": "switch", "at": 0.25}),
        (
            {"strategy": {"name": "switch", "epoch": 3, "momentum": "zero"}},
            "allreduce",
            {"name": "switch", "momentum": "zero", "at": 0.25},
        ),
        (
            {"strategy": {"name": "switch", "phases": PHASES, "ramp_steps": 0}},
            "local_sgd",
            {
                "name": "switch",
                "phases": [PHASES[0], {"strategy": SERVERS, "at": 0.25}],
                "ramp_steps": 0,
            },
        ),
        (
            {"strategy": SERVERS},
            "allreduce",
            {
                "name": "switch",
                "phases": [{"strategy": "allreduce"}, {"strategy": SERVERS, "at": 0.25}],
            },
        ),
    ],
)
def test_only_the_moment_changes(
    given: dict[str, object], synchronous: object, switched: object
) -> None:
    mapping = BASE | given
    check_tunable(mapping, "halving")
    assert with_share(mapping, SYNCHRONOUS) == mapping | {"strategy": synchronous}
    assert with_share(mapping, 0.25) == mapping | {"strategy": switched}
    job_from_mapping(with_share(mapping, 0.25))


def test_settings_of_the_synchronous_strategy_are_kept() -> None:
    given = BASE | {"strategy": {"name": "allreduce", "compression": "bf16"}}
    switched = job_from_mapping(with_share(given, 0.5)).strategy
    assert switched.name == "switch"
    assert switched.resolved[0].strategy == job_from_mapping(given).strategy


@pytest.mark.parametrize(
    ("given", "method", "message"),
    [
        ({"workers": 1}, "binary", "at least 2 workers"),
        ({"loss": "mse"}, "binary", "compares accuracy"),
        ({"evaluate": "never"}, "binary", "needs evaluation"),
        (
            {"strategy": {"name": "switch", "phases": [*PHASES, BACK]}},
            "binary",
            "the job has 2 switches",
        ),
        (
            {
                "strategy": {
                    "name": "switch",
                    "phases": [{"strategy": SERVERS}, {"strategy": "allreduce", "at": 0.5}],
                }
            },
            "binary",
            "synchronous first phase",
        ),
        ({"data": {"name": "digits", "validation": 0}}, "halving", r"data\.validation is 0"),
        ({"early_stop": {}}, "halving", "bars of its own"),
        ({"epochs": 1}, "halving", "has only 1"),
    ],
)
def test_jobs_that_cannot_be_searched_are_refused(
    given: dict[str, object], method: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        check_tunable(BASE | given, "binary" if method == "binary" else "halving")


def test_the_test_set_chooses_only_where_nothing_is_held_out() -> None:
    assert accuracy_of(job_from_mapping(BASE)) == "val_accuracy"
    bare = BASE | {"data": {"name": "digits", "validation": 0}}
    assert accuracy_of(job_from_mapping(bare)) == "test_accuracy"


def test_a_bar_makes_a_valid_job() -> None:
    early = job_from_mapping(with_bar(BASE, 6, 0.5)).early_stop
    assert early is not None
    assert early.bar is not None
    assert (early.patience, early.bar.epoch, early.bar.value) == (None, 6, 0.5)


def test_the_file_reads_back_as_the_job(tmp_path: Path) -> None:
    given = with_share(BASE | {"strategy": SERVERS}, 0.125)
    file = tmp_path / "job.yaml"
    file.write_text(as_file(given, "two\nlines"))
    assert file.read_text().startswith("# two\n# lines\nworkers: 2\n")
    assert load_job(file) == job_from_mapping(given)
