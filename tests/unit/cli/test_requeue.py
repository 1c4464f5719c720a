"""Runs that a scheduler starts again: which one goes on, and what is asked for at SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.cli.requeue import requeue_at_sigterm, restarted_run
from phalanx.errors import Interrupted, Terminated
from phalanx.launch.base import PoolRequest
from phalanx.pool.scheduler import Lease
from phalanx.pool.slurm import SlurmScheduler
from phalanx.records.manifest import describe, write_manifest
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.scheduler import SlurmSpec


def begin(runs: Path, lease: str | None) -> str:
    run = RunDir.create(runs, "job")
    write_manifest(run, describe(JobSpec(), data_root=runs, cache_root=runs, lease=lease))
    return run.name


def test_the_newest_run_of_the_same_lease_goes_on(tmp_path: Path) -> None:
    assert restarted_run(Lease("slurm 17", restarts=1), tmp_path) is None
    first = begin(tmp_path, "slurm 17")
    begin(tmp_path, "slurm 18")
    begin(tmp_path, None)
    RunDir.create(tmp_path, "killed-before-its-manifest")
    assert restarted_run(Lease("slurm 17", restarts=1), tmp_path) == first
    assert restarted_run(Lease("slurm 17", restarts=0), tmp_path) is None, "a first start"
    assert restarted_run(Lease("slurm 1", restarts=1), tmp_path) is None
    assert restarted_run(None, tmp_path) is None
    second = begin(tmp_path, "slurm 17")
    assert restarted_run(Lease("slurm 17", restarts=2), tmp_path) == second


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the scheduler is asked for."""
    orders: list[str] = []

    def requeue(self: SlurmScheduler) -> str:
        orders.append("requeue")
        return "it is in the queue again"

    monkeypatch.setattr(SlurmScheduler, "requeue", requeue)
    before = signal.getsignal(signal.SIGTERM)
    yield orders
    signal.signal(signal.SIGTERM, before)


def lent(scheduler: SlurmSpec | None) -> PoolRequest:
    pool = PoolSpec(machines=(MachineSpec(host="n1"),), scheduler=scheduler)
    return PoolRequest(pool, source="slurm.yaml")


def test_only_sigterm_on_lent_machines_asks_for_another_start(asked: list[str]) -> None:
    with (
        pytest.raises(Terminated, match=r"^ended by SIGTERM; it is in the queue again$"),
        requeue_at_sigterm(lent(SlurmSpec())),
    ):
        raise Terminated("ended by SIGTERM")
    assert asked == ["requeue"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, "the reason is still printed"
    for machines in (lent(None), None):
        with pytest.raises(Terminated, match=r"^x$"), requeue_at_sigterm(machines):
            raise Terminated("x")
    with pytest.raises(Interrupted), requeue_at_sigterm(lent(SlurmSpec())):
        raise Interrupted("Ctrl-C")
    assert asked == ["requeue"]
