"""Runs whose processes share no file system: the same bits, the same promises, one store.

Every process has a run directory of its own, which is gone when the process is lost. What the run
comes to must not depend on that, so most results are held against runs in one directory.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from phalanx.records.events import (
    Checkpoint,
    Decision,
    ServerRestored,
    Step,
)
from phalanx.records.log import read_logs
from phalanx.records.position import read_position
from phalanx.records.rundir import RunDir
from support.apart import PID, ApartPlace
from support.runs import LIMIT_S, Place, is_running
from support.waiting import wait_until

NUM_TRAIN, EPOCHS = 1294, 3
DECIDED = (
    "parameters_sha256",
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "test_loss",
    "test_accuracy",
    "samples",
    "updates",
)
JOB: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "adam", "lr": 0.003},
    "epochs": EPOCHS,
    "workers": 2,
    "checkpoint": {"every_steps": 7, "keep": 3},
}
SERVED = {"name": "parameter_server", "consistency": "bsp", "min_shard_bytes": 1024}
COLOCATED, APART = SERVED | {"servers": "colocated"}, SERVED | {"servers": 2}


def there_and_back(servers: dict[str, Any]) -> dict[str, Any]:
    phases = [
        {"strategy": "allreduce"},
        {"strategy": servers, "epoch": 0.6},
        {"strategy": "allreduce", "epoch": 1.7},
    ]
    return {"name": "switch", "phases": phases}


STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single", "workers": 1},
    "allreduce": {"strategy": {"name": "allreduce", "compression": "bf16"}},
    "local-sgd": {"strategy": {"name": "local_sgd", "every": 4, "outer": {}}},
    "bsp-colocated": {"strategy": COLOCATED},
    "switch": {"strategy": there_and_back(APART)},
    "switch-colocated": {"strategy": there_and_back(COLOCATED)},
}
# Long enough to be caught in the middle; a batch norm has statistics to lose.
LONG = {"model": {"name": "resnet", "n": 1}, "epochs": 6}


def new_place(kind: type[Place], folder: Path, cache: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return kind(folder, cache)


@pytest.fixture
def apart(tmp_path: Path, cache: Path) -> ApartPlace:
    return new_place(ApartPlace, tmp_path / "apart", cache)


@pytest.fixture
def together(tmp_path: Path, cache: Path) -> Place:
    return new_place(Place, tmp_path / "together", cache)


def train(place: Place, **fields: Any) -> tuple[dict[str, Any], RunDir]:
    place.write_job(JOB | {"name": "run"} | fields)
    summary = place.summary("job.yaml")
    return summary, RunDir.open(Path(summary["run_dir"]))


def results(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in DECIDED}


def contents(path: Path) -> dict[str, bytes]:
    return {name: one.numpy().tobytes() for name, one in load_file(path).items()}


@pytest.mark.parametrize(
    "name",
    [
        "switch-colocated",
        *(pytest.param(one, marks=pytest.mark.full) for one in list(STRATEGIES)[:-1]),
    ],
)
def test_apart_or_together_makes_no_difference(
    apart: ApartPlace, together: Place, name: str
) -> None:
    fields = STRATEGIES[name] | {"early_stop": {"monitor": "val_accuracy", "patience": 50}}
    there, run = train(apart, **fields)
    here, same = train(together, **fields)
    assert results(there) == results(here)
    # The same checkpoints, in the run directory of the controller and nowhere else.
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == {path.name for path in same.checkpoints.iterdir()}
    assert "best.safetensors" in names
    for one in names:
        assert contents(run.checkpoints / one) == contents(same.checkpoints / one), one
    assert {path.split("/")[0] for path in apart.files_of_processes()} == {"events"}
    saved = [one for log in read_logs(run.path / "events").values() for one in log]
    assert {one.path for one in saved if isinstance(one, Checkpoint)} >= {
        path.name for path in run.checkpoints.glob("samples-*")
    }


@pytest.mark.full
@pytest.mark.parametrize("name", ["allreduce", "bsp-colocated", "switch"])
def test_a_killed_run_is_taken_up_to_the_same_bits(
    apart: ApartPlace, together: Place, name: str
) -> None:
    fields = STRATEGIES[name] | LONG
    apart.write_job(JOB | {"name": "run"} | fields)
    with apart.start("job.yaml", "--quiet") as training:
        first = training.wait_for_checkpoint()
        wait_until(lambda: not first.exists(), "more checkpoints than are kept", limit_s=LIMIT_S)
        training.process.kill()
        training.end()
        pids = apart.pids()
        wait_until(lambda: not any(map(is_running, pids)), "the workers to die", limit_s=LIMIT_S)
    # The machines that it ran on are gone as well.
    shutil.rmtree(apart.machines)
    resumed = apart.summary("--resume", "last")
    unbroken, _ = train(together, **fields)
    assert results(resumed) == results(unbroken)
    assert resumed["attempts"] == 2


@pytest.mark.full
def test_asynchronous_servers_are_taken_up_where_they_were(apart: ApartPlace) -> None:
    served = APART | {"consistency": "async", "dispatch": "dynamic"}
    apart.write_job(JOB | {"name": "run", "strategy": served} | LONG)
    with apart.start("job.yaml", "--quiet") as training:
        training.wait_for_checkpoint()
        training.process.kill()
        training.end()
    run = training.run
    begun = read_position(max(run.checkpoints.glob("samples-*.safetensors"))).samples
    summary = apart.summary("--resume", "last")
    assert summary["samples"] == LONG["epochs"] * NUM_TRAIN
    # What the first attempt recorded was lost with its machines.
    steps = _events(run, "worker", Step)
    assert sum(one.num_samples for one in steps) == summary["samples"] - begun


def _events(run: RunDir, role: str, kind: type[Any]) -> list[Any]:
    logs = read_logs(run.path / "events", kind)
    return [one for name, log in logs.items() if name.startswith(role) for one in log]


@pytest.mark.parametrize(
    ("servers", "victim"),
    [
        (APART, "server-1"),
        pytest.param(APART, "worker-1", marks=pytest.mark.full),
        (COLOCATED, "worker-0"),
        pytest.param(APART, "evaluator-0", marks=pytest.mark.full),
    ],
    ids=["server", "worker", "worker with a server", "evaluator"],
)
def test_who_is_lost_with_its_machine_is_replaced(
    apart: ApartPlace, servers: dict[str, Any], victim: str
) -> None:
    served = servers | {"snapshot_s": 0.3}
    apart.write_job(
        JOB | {"name": "run", "strategy": served} | LONG | {"inject": [{"rank": 0, "slow": 2}]}
    )
    with apart.start("job.yaml", "--quiet") as training:
        training.wait_for_checkpoint()
        folder = apart.folder_of(victim)
        os.kill(int((folder / PID).read_text()), signal.SIGKILL)
        code, errors = training.end()
    assert code == 0, errors
    run = training.run
    assert not folder.exists()
    assert f"replace {victim}" in [one.what for one in _events(run, "controller", Decision)]
    summary = run.read_summary()
    assert summary is not None
    assert summary.samples == LONG["epochs"] * NUM_TRAIN
    assert summary.serving is not None
    assert summary.serving.processes_replaced == 1
    restored = _events(run, "controller", ServerRestored)
    if victim == "server-1" or servers is COLOCATED:
        [one] = restored
        # In lockstep no update is lost; the optimiser's memory is that of a snapshot.
        assert (one.server, one.lost_updates) == (int(victim[-1]), 0)
        assert 0 < one.optimizer_version <= one.version
    else:
        assert restored == []


def test_some_processes_may_share_the_controllers_directory(
    apart: ApartPlace, together: Place
) -> None:
    near = ["worker-0", "server-1"]
    apart.let_share(*near)
    summary, _ = train(apart, strategy=there_and_back(APART))
    expected, _ = train(together, strategy=there_and_back(APART))
    assert results(summary) == results(expected)
    assert not [one for one in near if list(apart.machines.glob(f"{one}.*"))]
