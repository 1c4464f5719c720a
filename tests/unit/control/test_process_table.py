"""What each process is told, without starting any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from phalanx.control.coordinator import Process
from phalanx.control.failure_policy import ProcessFacts
from phalanx.control.process_table import ProcessTable, RunRequest
from phalanx.launch.allocation import LocalAllocation, ProcessSlot
from phalanx.launch.base import LaunchRequest
from phalanx.records.rundir import RunDir
from phalanx.store.server import StoreServer
from phalanx.wire.control import ControlServer
from phalanx.wire.messages import Done, Heartbeat, Hello, Progress, PutValue
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
        assert roster.workers_beside(told[0].host) == 0
        assert roster.workers_beside("another") == 3


def beat(*, is_starting: bool) -> Heartbeat:
    return Heartbeat(Progress(is_starting=is_starting))


def test_starting_is_judged_by_movement_and_silence_only_once_all_are_up(
    tmp_path: Path,
) -> None:
    job = toy_job(workers=2)
    allocation = LocalAllocation(job, run_dir=tmp_path, data_root=tmp_path, cache_root=tmp_path)
    request = RunRequest(job, RunDir(tmp_path), data_root=tmp_path, cache_root=tmp_path)
    launcher = FakeLauncher(LaunchRequest(job, tmp_path, tmp_path))
    with ControlServer() as control, StoreServer(control, tmp_path) as store:
        table = ProcessTable(request, control, launcher, allocation=allocation, store=store)
        table.start([Process("worker", 0), Process("worker", 1)])

        def facts() -> list[ProcessFacts]:
            return table.facts({})

        assert [(one.joined, one.is_starting) for one in facts()] == [(False, True)] * 2
        table.age(100.0)
        assert [one.age_s for one in facts()] == [100.0, 100.0]
        table.take("worker-0", Hello(pid=1, host="here"))
        assert [one.age_s for one in facts()] == [0.0, 0.0], "one moved: the other may be next"
        table.age(100.0)
        table.take("worker-0", beat(is_starting=True))
        assert [one.age_s for one in facts()] == [100.0, 100.0], "a beat alone is no movement"
        table.take("worker-0", beat(is_starting=False))
        assert [(one.age_s, one.is_starting, one.is_crowded) for one in facts()] == [
            (0.0, False, True),
            (0.0, True, True),
        ]
        # A message of its role shows as much as a heartbeat does, but for the rendezvous before it.
        table.take("worker-1", Hello(pid=2, host="here"))
        table.take("worker-1", PutValue("address", b""))
        assert facts()[1].is_starting
        table.take("worker-1", Done())
        assert [(one.is_starting, one.is_crowded) for one in facts()] == [(False, False)] * 2
        # One that was under way when the code was there changes nothing.
        table.take("worker-1", beat(is_starting=True))
        assert not facts()[1].is_starting
