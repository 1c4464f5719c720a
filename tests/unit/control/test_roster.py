"""What each process is told, without starting any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from phalanx.control.coordinator import Process
from phalanx.control.roster import Roster, RunRequest
from phalanx.launch.base import Launcher, ProcessStatus, WorkerGroup
from phalanx.launch.site import Berth, LocalSite
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec
from phalanx.store.server import StoreServer
from phalanx.wire.control import ControlServer
from support.toy import toy_job


class Told(Launcher, WorkerGroup):
    """Starts nothing, and remembers what it was to start."""

    def __init__(self) -> None:
        self.specs: dict[str, WorkerSpec] = {}

    @override
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        for spec in specs:
            self.add(spec)
        return self

    @override
    def add(self, spec: WorkerSpec) -> None:
        self.specs[spec.process] = spec

    @override
    def poll(self) -> list[ProcessStatus]:
        return []

    @override
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        return ""

    @override
    def kill(self, process: str) -> None:
        del self.specs[process]

    @override
    def stop(self, grace_s: float) -> None:
        self.specs.clear()


class PartlyRemote(LocalSite):
    """A site of which some processes do not share the run directory."""

    remote: frozenset[str] = frozenset()

    @override
    def berth(self, role: str, rank: int) -> Berth:
        shares = f"{role}-{rank}" not in self.remote
        return replace(super().berth(role, rank), shares_run_dir=shares)


@pytest.mark.parametrize("remote", [set(), {"worker-1"}, {"worker-2"}])
def test_the_store_server_starts_with_the_first_remote_process(
    tmp_path: Path, remote: set[str]
) -> None:
    job = toy_job(workers=2)
    site = PartlyRemote(job, run_dir=tmp_path, data_root=tmp_path, cache_root=tmp_path)
    site.remote = frozenset(remote)
    request = RunRequest(job, RunDir(tmp_path), data_root=tmp_path, cache_root=tmp_path)
    told = Told()
    with ControlServer() as control, StoreServer(control, tmp_path) as store:
        roster = Roster(request, control, told, site=site, store=store)
        roster.start([Process("worker", 0), Process("worker", 1)])
        assert store.is_running == ("worker-1" in remote)
        roster.add(Process("worker", 2))
        assert store.is_running == bool(remote)
        port = store.start() if remote else 0
        ports = {name: spec.store_port for name, spec in told.specs.items()}
        assert ports == {f"worker-{rank}": 0 for rank in range(3)} | dict.fromkeys(remote, port)
        assert {name for name, spec in told.specs.items() if not spec.shared_run_dir} == remote
