"""A study on the machines of a pool that loses one of them on the way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.records.events import Epoch
from phalanx.records.log import read_logs
from phalanx.records.study import StudyDir, on_other_machines
from support.lab import LIMIT_S, Lab, make_whole, running_lab
from support.waiting import wait_until

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("studies")) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _nothing_stays(lab: Lab) -> Iterator[None]:
    yield
    make_whole(lab)


STUDY = {
    "study": "tiny",
    "job": "job.yaml",
    "axes": {"strategy": {"MW": {"strategy": "allreduce"}, "PS": {"strategy": "parameter_server"}}},
    "seeds": [1],
    "metric": "train_s",
}


def trained(study: Path) -> bool:
    logs = [read_logs(run / "events", Epoch) for run in (study / "runs").glob("*")]
    return any(len(epochs) >= 2 for log in logs for epochs in log.values())


def test_a_study_on_a_pool_goes_on_without_a_lost_machine(lab: Lab) -> None:
    """The trial that ended with it begins anew; all that are compared had the same machines."""
    (lab.folder / "study.yaml").write_text(json.dumps(STUDY))
    study = lab.folder / "study"
    command = lab.command(
        *("study", "run", "study.yaml", "--pool", str(lab.pool), "--to", str(study)),
        *("--set", "job.workers=3", "--set", "job.epochs=40"),
    )
    with subprocess.Popen(
        command, cwd=lab.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            wait_until(lambda: trained(study), "the first trial to train", limit_s=LIMIT_S)
            lab.cluster.switch_link("b", on=False)
            printed, said = run.communicate(timeout=2 * LIMIT_S)
        finally:
            run.kill()
    assert run.returncode == 0, said
    assert "begins anew on a, c, d: " in said + printed
    directory = StudyDir(study)
    trials = directory.trials()
    assert [(trial.cell, trial.state, trial.machines) for trial in trials] == [
        ("MW", "finished", ["a", "c", "d"]),
        ("PS", "finished", ["a", "c", "d"]),
    ]
    assert on_other_machines(trials) == []
    assert len(list(directory.abandoned.iterdir())) == 1
    assert {trial.run for trial in trials} == {path.name for path in directory.runs.iterdir()}
