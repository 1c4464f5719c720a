"""Searches as a user starts them: run, killed, resumed; what fails and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess

import psutil
import pytest

from phalanx.launch.fork_server import OWN
from phalanx.records.study import StudyDir
from phalanx.spec.loader import load_job
from phalanx.spec.switch import SwitchSpec
from support.runs import LIMIT_S, Place, is_running
from support.waiting import wait_until
from support.warm import starting

JOB = {
    "name": "tiny",
    "model": {"name": "mlp", "hidden": [16]},
    "data": "digits",
    "workers": 2,
    "threads": 1,
    "epochs": 4,
    "batch": {"global": 64},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "schedule": {"name": "milestones", "at": [0.25], "factor": 0.1},
    "checkpoint": {"every_epochs": None, "best": None},
}
# Wide enough for any run that learns at all.
SEARCH = ("--max-settings", "2", "--tolerance", "0.5", "--seeds", "5")


def lines_of(study: StudyDir) -> list[tuple[str, int]]:
    text = (study.path / "journal.jsonl").read_text()
    return [(line["cell"], line["seed"]) for line in map(json.loads, text.splitlines())]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_search_that_was_killed_is_resumed_with_every_run_once(place: Place) -> None:
    study = StudyDir(place.runs / "tune-tiny")
    with starting(OWN):
        command = place.command("tune", "switch", place.write_job(JOB), *SEARCH)
    with subprocess.Popen(
        command,
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def in_the_first_setting() -> bool:
            assert process.poll() is None, process.communicate()
            done = study.trials() if study.path.exists() else []
            return len(done) == 1 and len(list(study.runs.iterdir())) > 1

        wait_until(in_the_first_setting, "the first setting", limit_s=LIMIT_S)
        orphans = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        wait_until(
            lambda: not any(is_running(pid) for pid in orphans), "orphans to go", limit_s=LIMIT_S
        )
    before = study.trials()
    assert not (study.path / "job.yaml").exists()
    shown = place.run("tune", "show", str(study.path))
    assert "continue with `phalanx tune resume" in shown.stdout, shown.stderr

    done = place.run("tune", "resume", str(study.path))
    assert done.returncode == 0, done.stderr + done.stdout
    assert study.trials()[: len(before)] == before, "what had ended was not run again"
    assert lines_of(study) == [("synchronous", 5), ("at-50", 5), ("at-25", 5)]
    check_result(place, study)


def check_result(place: Place, study: StudyDir) -> None:
    shown = place.run("tune", "show", str(study.path), "--json")
    facts = json.loads(shown.stdout)
    assert (facts["is_over"], facts["found"], facts["runs"]) == (True, 0.25, 3)
    assert facts["cost_s"] == pytest.approx(sum(trial.elapsed_s for trial in study.trials()))
    assert [one["outcome"] for one in facts["settings"]] == ["meets"] * 3
    # On machines that share their cores asynchronous training may save nothing: then, and only
    # then, the job stays synchronous.
    took_s = {trial.cell: trial.elapsed_s for trial in study.trials()}
    saves = took_s["at-25"] < took_s["synchronous"]
    assert facts["best"] == (0.25 if saves else 1.0)
    strategy = load_job(study.path / "job.yaml").strategy
    assert strategy.name == ("switch" if saves else "allreduce")
    if isinstance(strategy, SwitchSpec):
        assert strategy.at == 0.25
    report = place.run("report", str(study.path), "--markdown", "report.md")
    assert report.returncode == 0, report.stderr
    assert "25 %" in (place.folder / "report.md").read_text()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_halving_ends_a_run_that_is_behind_at_its_bar(place: Place) -> None:
    """With a rate of nearly nothing after the switch the bar cannot be met by learning on."""
    stuck = {"name": "parameter_server", "servers": "colocated", "lr_scaling": "by_workers"}
    phases = [{"strategy": "allreduce"}, {"strategy": stuck, "at": 0.5}]
    # A climb that outlasts the job, from a share of the rate that moves nothing.
    switch = {"name": "switch", "phases": phases, "ramp_steps": 10**6, "ramp_from": 1e-9}
    job = JOB | {"epochs": 8, "schedule": {"name": "milestones", "at": [0.375]}, "strategy": switch}
    job["optimizer"] = {"name": "sgd", "lr": 0.01}
    place.write_job(job)
    arguments = ("--method", "halving", "--max-settings", "3", "--tolerance", "0.0001")
    done = place.run("tune", "switch", "job.yaml", *arguments, "--to", "search")
    assert done.returncode == 0, done.stderr + done.stdout
    facts = json.loads(place.run("tune", "show", "search", "--json").stdout)
    outcomes = {one["share"]: one["outcome"] for one in facts["settings"]}
    assert outcomes[0.125] == "dropped"
    study = StudyDir(place.folder / "search")
    trial = next(trial for trial in study.trials() if trial.cell == "at-12.5")
    summary = study.run(trial).read_summary()
    assert summary is not None
    assert (summary.state, summary.stopped_early, summary.epochs) == ("finished", True, 4)


def test_what_cannot_be_searched_is_refused_before_anything_starts(place: Place) -> None:
    place.write_job(JOB | {"workers": 1})
    done = place.run("tune", "switch", "job.yaml")
    assert (done.returncode, "at least 2 workers" in done.stderr) == (2, True)
    place.write_job(JOB)
    done = place.run("tune", "switch", "job.yaml", "--seeds", "one")
    assert (done.returncode, "whole numbers with commas" in done.stderr) == (2, True)
    assert not place.runs.exists()


def test_a_study_is_no_search(place: Place) -> None:
    (place.folder / "study.json").write_text("{}")
    done = place.run("tune", "resume", ".")
    assert (done.returncode, "is no search" in " ".join(done.stderr.split())) == (2, True)
