"""A strategy of another package, from training to the report; nothing in Phalanx knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.plugins import PLUGINS
from support.runs import Place

JOB: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": {"name": "digits", "limit": 640},
    "batch": {"global": 32},
    "optimizer": {"name": "sgd", "lr": 0.1},
    "epochs": 2,
    "workers": 4,
    "threads": 1,
    "strategy": {"name": "gossip", "every": 2},
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were installed: its folder, with the entry points, is importable."""
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS))


@pytest.mark.usefixtures("installed")
def test_gossip_is_trained_planned_and_reported(place: Place) -> None:
    job = place.write_job(JOB)
    summary = place.summary(job)
    assert summary["strategy"] == "gossip"
    assert summary["workers"] == 4
    # Chance is a tenth; replicas that never met, or met wrongly, would not agree on one result.
    assert summary["test_accuracy"] > 0.5
    # Every second step, each of four workers sends its parameters once; batches are 18 an epoch.
    assert summary["bytes_sent"] >= 4 * 18 * 4 * summary["parameters"]

    planned = place.run("plan", job, "--calibrate", "never", "--json")
    assert planned.returncode == 0, planned.stderr
    rows = {row["strategy"] for row in json.loads(planned.stdout)["candidates"]}
    assert {"gossip every 2", "allreduce"} <= rows

    # By import path, from the command line, it is the same strategy and the same arithmetic.
    again = place.summary(
        place.write_job({**JOB, "strategy": "allreduce"}, "other.yaml"),
        "--strategy",
        "phalanx_gossip.settings:GOSSIP",
        "--set",
        "strategy.every=2",
    )
    assert again["parameters_sha256"] == summary["parameters_sha256"]

    reported = place.run("report", str(place.runs), "-o", "report.html")
    assert reported.returncode == 0, reported.stderr
    page = (place.folder / "report.html").read_text()
    assert "gossip" in page
    assert "GOSSIP" in page
    runs = sorted(path.name for path in place.runs.iterdir())
    traced = place.run("trace", str(place.runs / runs[0]))
    assert traced.returncode == 0, traced.stderr


@pytest.mark.usefixtures("installed")
def test_a_strategy_without_a_predictor_is_said_to_have_none(place: Place) -> None:
    # A run of the same job with another strategy tells enough to plan the rest.
    place.summary(place.write_job({**JOB, "workers": 2, "strategy": "allreduce"}))
    job = place.write_job({**JOB, "strategy": "phalanx_gossip.settings:UNPLANNED"}, "own.yaml")
    planned = place.run("plan", job, "--calibrate", "never")
    assert planned.returncode == 0, planned.stderr
    assert "brings no predictor" in planned.stdout + planned.stderr


def test_without_the_package_the_job_is_refused_in_a_sentence(place: Place) -> None:
    file = Path(place.write_job(JOB))
    done = place.run("train", str(file))
    assert done.returncode == 2
    assert "unknown strategy 'gossip'" in done.stderr
