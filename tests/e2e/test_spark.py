"""Training on seats of a real standalone Spark cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from phalanx.records.events import Epoch, Started
from phalanx.records.log import read_events, read_logs
from support.spark_cluster import SparkCluster, missing_parts, running_spark
from support.waiting import wait_until

pytestmark = [
    pytest.mark.full,
    # Several Java processes start before anything is tried.
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing_parts()), reason=f"missing: {', '.join(missing_parts())}"),
]

LIMIT_S = 110.0
JOB = {
    "name": "job",
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "epochs": 2,
    "seed": 1,
    "threads": 1,
    "deadlines": {"heartbeat_s": 15, "controller_s": 15},
}
ENDLESS = {**JOB, "epochs": 100_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_spark(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


class Place:
    """A folder to train in on the seats of a cluster."""

    def __init__(self, cluster: SparkCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def start(self, job: dict[str, Any], *arguments: str, **seats: object) -> subprocess.Popen[str]:
        scheduler = {
            "name": "spark",
            "master": self.cluster.master,
            "settings": {"spark.executor.memory": "512m", "spark.ui.enabled": "false"},
            "seats": 2,
            **seats,
        }
        (self.folder / "spark.yaml").write_text(json.dumps({"scheduler": scheduler}))
        (self.folder / "job.yaml").write_text(json.dumps(job))
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "phalanx.cli.main", "train", "job.yaml"),
                *("--pool", "spark.yaml", *arguments),
            ],
            cwd=self.folder,
            env={**self.cluster.environment, "PHALANX_FORK_SERVER": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def run(self) -> Path:
        [run] = (self.folder / "runs").iterdir()
        return run

    def epochs(self) -> list[int]:
        if not (self.folder / "runs").exists():
            return []
        logs = read_logs(self.run / "events", Epoch).values()
        return [one.epoch for log in logs for one in log if isinstance(one, Epoch)]

    def await_epochs(self, run: subprocess.Popen[str], count: int) -> None:
        wait_until(
            lambda: len(self.epochs()) >= count or run.poll() is not None,
            "the run to train",
            limit_s=LIMIT_S,
        )

    def worker(self, rank: int) -> psutil.Process:
        log = read_events(self.run / "events" / f"worker-{rank}.jsonl", Started)
        return psutil.Process(next(one.pid for one in log if isinstance(one, Started)))


@pytest.fixture
def place(cluster: SparkCluster, tmp_path: Path) -> Iterator[Place]:
    yield Place(cluster, tmp_path)
    wait_until(lambda: not cluster.executors(), "all executors to end", limit_s=30.0)
    assert not list((cluster.home / "phalanx").glob("*")), "no run directory is left"


def train_here(place: Place) -> Path:
    """Train the job of a place on this machine; returns the run."""
    command = (sys.executable, "-m", "phalanx.cli.main", "train", "job.yaml", "--workers", "2")
    here = subprocess.run(
        [*command, "--runs", "here", "--quiet"],
        cwd=place.folder,
        env=place.cluster.environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert here.returncode == 0
    [run] = (place.folder / "here").iterdir()
    return run


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(run / "model.safetensors") for run in (one, other))
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )


def test_seats_train_as_this_machine_does(place: Place) -> None:
    run = place.start(JOB, "--json")
    out, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    summary = json.loads(out)
    assert (summary["workers"], summary["epochs"]) == (2, 2)
    logs = read_logs(place.run / "events", Started)
    hosts = [
        {one.host for one in logs[f"worker-{rank}"] if isinstance(one, Started)} for rank in (0, 1)
    ]
    assert hosts == [{"seat-0"}, {"seat-1"}]
    assert same_weights(place.run, train_here(place)), "bit by bit"


def test_a_killed_executor_ends_synchronous_training(place: Place) -> None:
    run = place.start(ENDLESS, cores=2)
    place.await_epochs(run, 2)
    worker = place.worker(1)
    executor = next(one for one in worker.parents() if one in place.cluster.executors())
    executor.kill()
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 4, said


def test_too_few_slots_are_counted_before_anything_starts(place: Place) -> None:
    run = place.start(JOB, seats=3, cores=2)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 2
    assert "Spark has 2 slots of 2 cores, and 3 are wanted; set fewer 'seats'" in said
    assert not (place.folder / "runs").exists()
