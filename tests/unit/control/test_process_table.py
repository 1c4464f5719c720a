"""What each process is told, without starting any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from phalanx.control.coordinator import Process
from phalanx.control.process_table import ProcessTable, RunRequest
from phalanx.launch.allocation import LocalAllocation, ProcessSlot
from phalanx.launch.base import LaunchRequest
from phalanx.records.rundir import RunDir
from phalanx.store.server import StoreServer
from phalanx.wire.control import ControlServer
from support.fake_launcher import FakeLauncher
from support.toy import toy_job


class PartlyRemote(LocalAllocation):
    """An allocation of which some processes do not share the run directory."""

    remote: frozenset[str] = frozenset()

    @override
    def slot(self, role: str, rank: int) -> ProcessSlot:
        shares = f"{role}-{rank}" not in self.remote
        return replace(super().slot(role, rank), shares_run_dir=shares)


@pytest.mark.parametrize("remote", [set(), {"worker-1"}, {"worker-2"}])
def test_the_store_server_starts_with_the_first_remote_process(
    tmp_path: Path, remote: set[str]
) -> None:
    job = toy_job(workers=2)
    allocation = PartlyRemote(job, run_dir=tmp_path, data_root=tmp_path, cache_root=tmp_path)
    allocation.remote = frozenset(remote)
    request = RunRequest(job, RunDir(tmp_path), data_root=tmp_path, cache_root=tmp_path)
    launcher = FakeLauncher(LaunchRequest(job, tmp_path, tmp_path))
    with ControlServer() as control, StoreServer(control, tmp_path) as store:
        roster = ProcessTable(request, control, launcher, allocation=allocation, store=store)
        roster.start([Process("worker", 0), Process("worker", 1)])
        assert store.is_running == ("worker-1" in remote)
        roster.add(Process("worker", 2))
        assert store.is_running == bool(remote)
        port = store.start() if remote else 0
        told = [process.spec for process in launcher.groups[0].processes.values()]
        ports = {spec.process: spec.store_port for spec in told}
        assert ports == {f"worker-{rank}": 0 for rank in range(3)} | dict.fromkeys(remote, port)
        assert {spec.process for spec in told if not spec.shared_run_dir} == remote
