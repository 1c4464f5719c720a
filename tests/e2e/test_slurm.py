"""Training inside an allocation of a real Slurm: its nodes as machines, SIGTERM and requeue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import SpecError
from phalanx.pool.probe import ProbeOptions, probe_pool
from phalanx.pool.scheduler import Lease, lease_of
from phalanx.records.events import Epoch, Started
from phalanx.records.log import read_logs
from phalanx.spec.pool_file import load_pool
from support.slurm import Slurm, missing_programs, running_slurm
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    bool(missing_programs()), reason=f"Slurm is not installed: {', '.join(missing_programs())}"
)

LIMIT_S = 110.0
JOB = {
    "name": "job",
    "data": "digits",
    "model": {"name": "mlp", "hidden": [16]},
    "epochs": 2,
    "seed": 1,
    "deadlines": {"heartbeat_s": 10, "controller_s": 10},
}
ENDLESS = {**JOB, "epochs": 100_000, "checkpoint": {"every_epochs": 1}}
TRAIN = f"exec {sys.executable} -m phalanx.cli.main train job.yaml --pool slurm.yaml"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def _nothing_stays(slurm: Slurm) -> Iterator[None]:
    yield
    slurm.run("scancel", "--user=root")
    wait_until(lambda: not slurm.run("squeue", "-h"), "the queue to be empty")


@pytest.fixture
def inside(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Slurm, Path, int]:
    """An allocation of two nodes that this process is in, and a pool file for it."""
    slurm.run("salloc", "--no-shell", "--nodes=2", "--ntasks=3", "--job-name=inside")
    [number] = slurm.run("squeue", "-h", "-n", "inside", "-o", "%i").split()
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    monkeypatch.setenv("SLURM_JOB_ID", number)
    (tmp_path / "slurm.yaml").write_text("scheduler: slurm\n")
    return slurm, tmp_path / "slurm.yaml", int(number)


def submit(
    slurm: Slurm, folder: Path, job: dict[str, Any], *arguments: str, pool: str = "scheduler: slurm"
) -> str:
    """Hand a training to sbatch; returns the number of the Slurm job."""
    (folder / "job.yaml").write_text(json.dumps(job))
    (folder / "slurm.yaml").write_text(pool + "\n")
    (folder / "batch").write_text(f"#!/bin/sh\n{TRAIN} {' '.join(arguments)} 2>>said\n")
    return slurm.run(
        *("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", f"--chdir={folder}"),
        *("--requeue", "--open-mode=append", f"--output={folder}/out"),
        *(f"--export=ALL,HOME={folder}/home,PHALANX_FORK_SERVER=off", str(folder / "batch")),
    )


def run_dirs(folder: Path) -> list[Path]:
    return sorted((folder / "runs").glob("*/")) if (folder / "runs").exists() else []


def epochs_of(run: Path) -> list[int]:
    # A worker records them, or with servers the controller.
    logs = read_logs(run / "events", Epoch).values()
    return [one.epoch for log in logs for one in log if isinstance(one, Epoch)]


def await_epochs(folder: Path, count: int) -> Path:
    wait_until(
        lambda: run_dirs(folder) and len(epochs_of(run_dirs(folder)[0])) >= count,
        "the run to train",
        limit_s=LIMIT_S,
    )
    [run] = run_dirs(folder)
    return run


def test_the_nodes_of_an_allocation_are_the_machines_of_a_pool(
    inside: tuple[Slurm, Path, int],
) -> None:
    slurm, path, number = inside
    pool = load_pool(path).spec
    assert [one.title for one in pool.machines] == ["n1", "n2"]
    assert [(one.slots, one.cores) for one in pool.machines] == [(2, 2.0), (1, 1.0)]
    assert {one.address for one in pool.machines} == {"127.0.0.1"}
    assert {one.python for one in pool.machines} == {sys.executable}
    assert lease_of(pool) == Lease(f"slurm {number}", restarts=0)
    found = probe_pool(pool, ProbeOptions(quick=True))
    assert not found.faults
    assert len(found.probes) == 2

    path.write_text(f"scheduler: {{name: slurm, job: {number}}}\ndefaults: {{slots: 1}}\n")
    assert [one.slots for one in load_pool(path).spec.machines] == [1, 1]
    slurm.run("scancel", str(number))
    wait_until(lambda: slurm.state(str(number)) == "CANCELLED", "the job to end")
    with pytest.raises(SpecError, match=f"Slurm job {number} is cancelled and has no nodes"):
        load_pool(path)


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy", ["allreduce", {"name": "parameter_server", "servers": 1}], ids=["all", "ps"]
)
def test_a_batch_job_trains_on_its_nodes(
    slurm: Slurm, tmp_path: Path, strategy: str | dict[str, Any]
) -> None:
    number = submit(slurm, tmp_path, {**JOB, "strategy": strategy}, "--json")
    wait_until(lambda: slurm.state(number) == "COMPLETED", "the job to end", limit_s=LIMIT_S)
    summary = json.loads((tmp_path / "out").read_text())
    assert (summary["workers"], summary["epochs"]) == (2, 2)
    [run] = run_dirs(tmp_path)
    logs = read_logs(run / "events", Started)
    hosts = [
        {one.host for one in logs[f"worker-{rank}"] if isinstance(one, Started)} for rank in (0, 1)
    ]
    assert hosts == [{"n1"}, {"n2"}]
    assert json.loads((run / "manifest.json").read_text())["lease"] == f"slurm {number}"
    assert not list((tmp_path / "home" / "phalanx").glob("*"))


@pytest.mark.full
def test_a_run_goes_on_where_sigterm_and_requeue_have_ended_it(
    slurm: Slurm, tmp_path: Path
) -> None:
    pool = "scheduler: {name: slurm, requeue: true}"
    number = submit(slurm, tmp_path, ENDLESS, pool=pool)
    run = await_epochs(tmp_path, 2)
    # What `sbatch --signal=B:TERM@60` has Slurm send before the time limit.
    slurm.run("scancel", "--batch", "--signal=TERM", number)
    wait_until(
        lambda: "when nodes are free, and the run continues" in (tmp_path / "said").read_text(),
        "the run to end",
        limit_s=LIMIT_S,
    )
    done = max(epochs_of(run))
    slurm.run("scontrol", "release", number)
    # Slurm lets a requeued job wait for two minutes.
    wait_until(lambda: slurm.state(number) == "PENDING", "the job to wait")
    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    wait_until(lambda: max(epochs_of(run)) > done + 1, "the run to go on", limit_s=LIMIT_S)
    assert run_dirs(tmp_path) == [run], "in the same run directory"
    assert json.loads((run / "status.json").read_text())["attempt"] == 2
    slurm.run("scancel", number)
    wait_until(lambda: not slurm.run("squeue", "-h"), "the job to end", limit_s=LIMIT_S)
    assert slurm.state(number) == "CANCELLED", "whoever cancels a job wants no other start of it"
