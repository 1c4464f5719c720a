"""A job whose parts come from other packages: trained, planned, and reported like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.records.events import Evaluation, Step
from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from support.plugins import PLUGINS
from support.runs import Place

JOB = str(PLUGINS / "job.yaml")
SOURCE = Path(__file__).parents[2] / "src"


def test_every_part_may_come_from_another_package(place: Place) -> None:
    summary = place.summary(JOB, "--launch", "phalanx_extras.polite:POLITE")
    assert summary["updates"] == 27
    assert set(summary["test_metrics"]) == {"accuracy", "worst_class"}
    run = RunDir(Path(summary["run_dir"]))
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["launch"] == "phalanx_extras.polite:POLITE"
    job = manifest["job"]
    assert job["optimizer"]["name"] == "phalanx_extras:LION"
    assert job["python_path"] == [str(PLUGINS)]
    steps = [one for log in read_logs(run.path / "events", Step).values() for one in log]
    assert sum(one.num_samples for one in steps if isinstance(one, Step)) == 3 * 432
    said = [one for log in read_logs(run.path / "events", Evaluation).values() for one in log]
    assert any("worst_class" in one.metrics for one in said if isinstance(one, Evaluation))

    again = place.summary(JOB, "--set", "strategy={name: parameter_server, consistency: bsp}")
    assert again["updates"] == 27

    planned = place.run("plan", JOB, "--calibrate", "never")
    assert planned.returncode == 0, planned.stderr
    assert "gossip every 1" in planned.stdout

    reported = place.run("report", str(place.runs), "-o", "page.html")
    assert reported.returncode == 0, reported.stderr
    assert "worst_class" in (place.folder / "page.html").read_text()


@pytest.mark.parametrize("name", ["phalanx_extras", "phalanx_gossip", "phalanx_redshift"])
def test_nothing_in_the_source_knows_them(name: str) -> None:
    assert not [path for path in SOURCE.rglob("*.py") if name in path.read_text()]
