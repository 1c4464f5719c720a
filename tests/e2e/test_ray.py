"""Training on seats of a real Ray cluster: lines that the seats open, losses, too few seats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from phalanx.records.events import Epoch, Started
from phalanx.records.log import read_events, read_logs
from support.ray_cluster import RayCluster, running_cluster
from support.waiting import wait_until

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is missing"),
]

LIMIT_S = 100.0
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with running_cluster(tmp_path_factory.mktemp("ray")) as cluster:
        yield cluster


class Place:
    """A folder to train in on the seats of a cluster."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def start(self, job: dict[str, Any], *arguments: str, **seats: object) -> subprocess.Popen[str]:
        scheduler = {"name": "ray", "address": self.cluster.address, "seats": 2, **seats}
        (self.folder / "ray.yaml").write_text(json.dumps({"scheduler": scheduler}))
        (self.folder / "job.yaml").write_text(json.dumps(job))
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "phalanx.cli.main", "train", "job.yaml"),
                *("--pool", "ray.yaml", *arguments),
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
        # A worker records them, or with servers the controller.
        logs = read_logs(self.run / "events", Epoch).values()
        return [one.epoch for log in logs for one in log if isinstance(one, Epoch)]

    def await_epochs(self, count: int) -> None:
        wait_until(lambda: len(self.epochs()) >= count, "the run to train", limit_s=LIMIT_S)

    def worker(self, rank: int) -> psutil.Process:
        log = read_events(self.run / "events" / f"worker-{rank}.jsonl", Started)
        return psutil.Process(next(one.pid for one in log if isinstance(one, Started)))


@pytest.fixture
def place(cluster: RayCluster, tmp_path: Path) -> Iterator[Place]:
    yield Place(cluster, tmp_path)
    wait_until(lambda: cluster.cores() == "[4.0, 4.0]", "all cores to be free", limit_s=30.0)
    assert not list((cluster.home / "phalanx").glob("*")), "no run directory is left"


def actor_of(worker: psutil.Process) -> psutil.Process:
    """The process of Ray above a worker."""
    return next(one for one in worker.parents() if "ray::" in " ".join(one.cmdline()))


def test_seats_train_as_this_machine_does(place: Place) -> None:
    run = place.start(JOB, "--json", placement="spread")
    out, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    summary = json.loads(out)
    assert (summary["workers"], summary["epochs"]) == (2, 2)
    logs = read_logs(place.run / "events", Started)
    hosts = [
        {one.host for one in logs[f"worker-{rank}"] if isinstance(one, Started)} for rank in (0, 1)
    ]
    assert hosts == [{"seat-0"}, {"seat-1"}]
    weights = load_file(place.run / "model.safetensors")
    here = subprocess.run(
        [
            *(sys.executable, "-m", "phalanx.cli.main", "train", "job.yaml", "--workers", "2"),
            *("--runs", "here", "--quiet"),
        ],
        cwd=place.folder,
        env=place.cluster.environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert here.returncode == 0
    [local] = (place.folder / "here").iterdir()
    same = load_file(local / "model.safetensors")
    assert same.keys() == weights.keys()
    assert all(same[name].tobytes() == weights[name].tobytes() for name in same), "bit by bit"


def test_a_killed_actor_is_named_and_ends_synchronous_training(place: Place) -> None:
    run = place.start(ENDLESS)
    place.await_epochs(2)
    actor_of(place.worker(1)).kill()
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 4
    assert "worker-1 is lost with machine seat-1: the connection to it broke off" in said
    assert "Ray says: " in said


def test_too_few_seats_are_counted_before_anything_starts(place: Place) -> None:
    run = place.start(JOB, seats=3, cores=2, start_s=2.0)
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 2
    assert "Ray did not reserve 3 seats of 2 cores within 2 s: its nodes have room for 2;" in said
    assert not (place.folder / "runs").exists()
