"""Studies as a user starts them: run, killed, resumed; failures reported while the rest goes on."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from phalanx.launch.fork_server import OWN
from phalanx.records.rundir import RunDir
from phalanx.records.study import StudyDir
from support.runs import ENDLESS, LIMIT_S, Place, is_running
from support.waiting import wait_until
from support.warm import starting

MATRIX = {
    "study": "tiny",
    "job": {
        "model": {"name": "mlp", "hidden": [16]},
        "data": "digits",
        "epochs": 1,
        "threads": 1,
        "checkpoint": {"every_epochs": None, "best": None},
    },
    "axes": {
        "strategy": {
            "single": {"strategy": "single", "workers": 1},
            "allreduce": {"strategy": "allreduce", "workers": 2},
        },
        "batch.global": [32, 64],
    },
    "repeats": 3,
    "parallel": 2,
    "gate": {"metric": "test_accuracy", "tolerance": 0.2, "baseline": "single"},
}
BROKEN = "def build():\n    raise ValueError('no such network')\n"


@contextmanager
def started(place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A study under way; it is killed if the block does not end it."""
    with subprocess.Popen(
        place.command("study", *arguments),
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write(place: Place, study: dict[str, Any]) -> str:
    return place.write_job(study, "study.yaml")


def family(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.skipif(len(psutil.Process().cpu_affinity() or []) < 2, reason="takes two cores")
def test_a_study_that_was_killed_is_resumed_with_every_trial_once(place: Place) -> None:
    study = StudyDir(place.runs / "study-tiny")
    with starting(OWN), started(place, "run", write(place, MATRIX)) as process:

        def half_way() -> bool:
            assert process.poll() is None, process.communicate()
            # Trials under way that have a run directory are what an interruption loses.
            done = study.trials() if study.path.exists() else []
            return len(done) >= 4 and len(list(study.runs.iterdir())) > len(done)

        wait_until(half_way, "the first trials", limit_s=LIMIT_S)
        busy = place.run("study", "resume", str(study.path))
        assert (busy.returncode, "is being run by process" in busy.stderr) == (6, True)
        wait_until(half_way, "trials under way", limit_s=LIMIT_S)
        orphans = family(process.pid)
        assert orphans, "trials are under way"
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        wait_until(
            lambda: not any(is_running(pid) for pid in orphans), "orphans to go", limit_s=LIMIT_S
        )
    before = study.trials()
    assert len(before) < 12
    # One that had no directory yet, or was done at the last moment, leaves nothing behind.
    interrupted = {path.name for path in study.runs.iterdir()} - {one.run for one in before}

    with started(place, "resume", str(study.path)) as process:
        shown, errors = process.communicate(timeout=2 * LIMIT_S)
    assert process.returncode == 0, errors + shown
    check_whole(study)
    aside = {path.name for path in study.abandoned.iterdir()}
    assert aside == interrupted, "what was interrupted lies aside"
    assert study.trials()[: len(before)] == before, "what had ended was not run again"
    assert "equivalence gate: test_accuracy within ± 0.2 of strategy=single" in shown


def check_whole(study: StudyDir) -> None:
    lines = [json.loads(line) for line in (study.path / "journal.jsonl").read_text().splitlines()]
    keys = [(line["cell"], line["repeat"]) for line in lines]
    assert len(keys) == len(set(keys)) == 12, "every trial exactly once"
    seeds: dict[str, set[int]] = defaultdict(set)
    for trial in study.trials():
        assert trial.state == "finished", trial.cause
        summary = study.run(trial).read_summary()
        assert summary is not None
        assert summary.seed == trial.seed
        assert summary.global_batch == int(trial.settings["batch.global"])
        seeds[trial.cell].add(trial.seed)
    assert list(seeds.values()) == [{1, 2, 3}] * 4, "paired seeds"
    assert {path.name for path in study.runs.iterdir()} == {trial.run for trial in study.trials()}
    check_cores(study)


def check_cores(study: StudyDir) -> None:
    """No two trials that ran at the same time had a core in common."""
    trials = study.trials()
    for one in trials:
        for other in trials:
            together = one.span[0] < other.span[1] and other.span[0] < one.span[1]
            if one is not other and together:
                assert not set(one.cores) & set(other.cores)


def test_a_cell_that_fails_is_reported_and_the_others_go_on(place: Place) -> None:
    (place.folder / "nets.py").write_text(BROKEN)
    good = MATRIX["job"]["model"]  # type: ignore[index]
    axes = {"model": {"good": {"model": good}, "broken": {"model": "nets:build"}}}
    study = MATRIX | {"axes": axes, "repeats": 1, "parallel": 1, "gate": None}
    done = place.run("study", "run", write(place, study), "--to", "out")
    assert done.returncode == 1, done.stderr + done.stdout
    states = {trial.cell: trial for trial in StudyDir(place.folder / "out").trials()}
    assert states["good"].state == "finished"
    assert states["broken"].state == "failed"
    assert "no such network" in (states["broken"].cause or "")
    assert "✗ broken repeat 1 failed" in done.stdout


def test_ctrl_c_ends_a_study_and_says_how_to_go_on(place: Place) -> None:
    study = {"study": "long", "job": ENDLESS, "axes": {"batch.global": [32]}, "repeats": 1}
    with started(place, "run", write(place, study)) as process:
        runs = place.runs / "study-long" / "runs"

        def trains() -> bool:
            found = list(runs.glob("*/status.json")) if runs.exists() else []
            return any(RunDir(path.parent).events_path("worker-0").exists() for path in found)

        wait_until(trains, "the first run", limit_s=LIMIT_S)
        children = family(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert f"go on with `phalanx study resume {place.runs / 'study-long'}`" in " ".join(
        errors.split()
    )
    assert not any(is_running(pid) for pid in children)
    assert StudyDir(place.runs / "study-long").trials() == []


def test_a_bad_cell_is_named_before_anything_starts(place: Place) -> None:
    study = MATRIX | {"axes": {"workers": [1, 2], "strategy": ["single"]}, "gate": None}
    done = place.run("study", "run", write(place, study))
    assert done.returncode == 2
    assert "(cell workers=2, strategy=single)" in " ".join(done.stderr.split())
    assert not place.runs.exists()


def test_a_dry_run_shows_cells_and_starts_nothing(place: Place) -> None:
    done = place.run("study", "run", write(place, MATRIX), "--dry-run", "--repeats", "5")
    assert done.returncode == 0, done.stderr
    assert "4 cells, 20 runs, seeds 1, 2, 3, 4, 5" in done.stdout
    assert not place.runs.exists()
