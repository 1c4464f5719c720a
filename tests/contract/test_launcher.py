"""What every launcher promises: in memory, here, over a shell instead of ssh, and by srun."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from phalanx.errors import LaunchError
from phalanx.launch.allocation import Allocation, PoolAllocation
from phalanx.launch.base import (
    Launcher,
    LaunchRequest,
    PoolRequest,
    ProcessStatus,
    WorkerGroup,
)
from phalanx.launch.catalogue import make_launcher
from phalanx.launch.local import LocalLauncher
from phalanx.launch.ssh import SshLauncher
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.pool_file import load_pool
from phalanx.spec.worker import WorkerSpec
from support.fake_launcher import FakeLauncher, Script
from support.plugins import PLUGINS
from support.slurm import missing_programs, running_slurm
from support.there import HereRoute, here
from support.waiting import wait_until

FAILING = 1
"""Rank of a worker that ends with code 1 and a traceback, where a test wants one."""


class Case(ABC):
    """One launcher, and how a test brings about what it wants to see."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.stack = ExitStack()
        self.job = JobSpec.model_validate({"workers": 2, "deadlines": {"heartbeat_s": 60}})
        self.launcher = self.make(LaunchRequest(self.job, folder / "data", folder / "cache"))
        self.allocation: Allocation | None = None

    @abstractmethod
    def make(self, request: LaunchRequest) -> Launcher:
        """The launcher; it has started nothing."""

    @abstractmethod
    def refuse_starts(self) -> None:
        """See to it that no process can be started."""

    def prepare(self) -> Allocation:
        """Go as far as the façade does before there is a controller."""
        self.launcher.check()
        self.allocation = self.launcher.allocate(RunDir.create(self.folder / "runs", "job"))
        return self.allocation

    def spec(self, rank: int, **fields: object) -> WorkerSpec:
        """A worker that waits for a controller that is not there."""
        assert self.allocation is not None
        slot = self.allocation.slot("worker", rank)
        values: dict[str, object] = {
            "job": self.job,
            "role": "worker",
            "rank": rank,
            "incarnation": 1,
            "host": slot.machine,
            "address": slot.address,
            "run_dir": slot.run_dir,
            "data_root": slot.data_root,
            "cache_root": slot.cache_root,
            "threads": slot.threads,
            "cpus": (),
            "attempt": 1,
            "resume": None,
            "control_address": "tcp://127.0.0.1:9",
            "controller_key": "",
            "public_key": "",
            "secret_key": "",
            "parent_pid": os.getpid(),
        }
        return WorkerSpec.model_validate(values | fields)

    def failing(self) -> WorkerSpec:
        """A worker that ends at once: it is bound to a core that is not there."""
        return self.spec(FAILING, cpus=(9999,))


class FakeCase(Case):
    @override
    def make(self, request: LaunchRequest) -> FakeLauncher:
        return FakeLauncher(request)

    @override
    def refuse_starts(self) -> None:
        assert isinstance(self.launcher, FakeLauncher)
        self.launcher.script.refused = ("worker-0", "worker-1")

    @override
    def failing(self) -> WorkerSpec:
        assert isinstance(self.launcher, FakeLauncher)
        self.launcher.script.exits = {"worker-1": (1,)}
        self.launcher.script.logs = {"worker-1": "Traceback\nValueError: no such core"}
        return super().failing()


class LocalCase(Case):
    @override
    def make(self, request: LaunchRequest) -> LocalLauncher:
        return LocalLauncher(request)

    @override
    def refuse_starts(self) -> None:
        self.monkeypatch.setattr(sys, "executable", "/nowhere/python")


class PluginCase(Case):
    """A launcher of another package."""

    @override
    def make(self, request: LaunchRequest) -> Launcher:
        self.monkeypatch.syspath_prepend(str(PLUGINS))
        return make_launcher("phalanx_extras.polite:POLITE", request)

    @override
    def refuse_starts(self) -> None:
        self.monkeypatch.setenv("PATH", str(self.folder))


class HereLauncher(SshLauncher):
    """Reaches its machines by a shell of this one."""

    routes = staticmethod(lambda pool: nullcontext(HereRoute))


class SshCase(Case):
    @override
    def make(self, request: LaunchRequest) -> SshLauncher:
        # Where code and data are sent: not the home of whoever runs the tests.
        self.monkeypatch.setenv("HOME", str(self.folder / "home"))
        machines = tuple(
            here(name, workdir=self.folder / name).machine.model_copy(
                update={"address": "127.0.0.1"}
            )
            for name in ("a", "b")
        )
        pool = PoolRequest(PoolSpec(pool="here", machines=machines), source="pool.yaml")
        return HereLauncher(replace(request, pool=pool))

    @override
    def refuse_starts(self) -> None:
        assert isinstance(self.allocation, PoolAllocation)
        hosts = self.allocation._group.by_name
        for name, host in hosts.items():
            hosts[name] = replace(host, python="/nowhere/python")


class SlurmCase(SshCase):
    """The nodes of an allocation of a real Slurm."""

    @override
    def make(self, request: LaunchRequest) -> SshLauncher:
        if missing_programs():
            pytest.skip(f"Slurm is not installed: {', '.join(missing_programs())}")
        self.monkeypatch.setenv("HOME", str(self.folder / "home"))
        (self.folder / "slurm").mkdir()
        slurm = self.stack.enter_context(running_slurm(self.folder / "slurm", nodes=("a", "b")))
        # Its steps end by themselves, while there is a controller that they can tell so.
        self.stack.callback(
            wait_until, lambda: not slurm.run("squeue", "-h", "--steps"), "the steps to end"
        )
        slurm.run("salloc", "--no-shell", "--nodes=2", "--ntasks=2")
        for name in ("PATH", "SLURM_CONF"):
            self.monkeypatch.setenv(name, slurm.environment[name])
        self.monkeypatch.setenv("SLURM_JOB_ID", slurm.run("squeue", "-h", "-o", "%i"))
        file = self.folder / "slurm.yaml"
        file.write_text("scheduler: slurm\n")
        pool = PoolRequest(load_pool(file).spec, source=str(file))
        return SshLauncher(replace(request, pool=pool))


@pytest.fixture(
    params=[
        FakeCase,
        LocalCase,
        PluginCase,
        SshCase,
        pytest.param(SlurmCase, marks=pytest.mark.full),
    ],
    ids=["fake", "local", "plugin", "ssh", "slurm"],
)
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    made: Case = request.param(tmp_path, monkeypatch)
    with made.stack, closing(made.launcher):
        yield made
    left = sorted(path.name for path in tmp_path.iterdir())
    assert not {"a", "b"} & set(left), "the run's directories on other machines are gone"


@pytest.fixture
def group(case: Case) -> Iterator[WorkerGroup]:
    """Two workers that wait."""
    case.prepare()
    found = case.launcher.start([case.spec(0), case.spec(1)])
    yield found
    found.stop(grace_s=0.0)


def by_name(group: WorkerGroup) -> dict[str, ProcessStatus]:
    return {status.process: status for status in group.poll()}


def test_every_process_gets_a_slot_before_any_is_started(case: Case) -> None:
    allocation = case.prepare()
    allocation.announce([("worker", 0), ("worker", 1), ("server", 0)])
    for role, rank in (("worker", 0), ("worker", 1), ("server", 0)):
        slot = allocation.slot(role, rank)
        assert slot.machine
        assert slot.threads >= 1
        assert allocation.slot(role, rank) == slot, "asked again, it is the same"
        assert allocation.move(role, rank, crowd=False), "its machine is there"
        assert allocation.slot(role, rank) == slot
    own = allocation.environment("worker", 1, run="job")
    assert (own["RANK"], own["WORLD_SIZE"]) == ("1", "2")
    assert own["MASTER_PORT"] == allocation.environment("worker", 0, run="job")["MASTER_PORT"]
    assert allocation.worker_threads >= 1
    assert case.launcher.notes == ()


def test_processes_run_until_they_are_stopped_and_may_be_stopped_again(group: WorkerGroup) -> None:
    assert list(by_name(group)) == ["worker-0", "worker-1"]
    assert all(status.running for status in group.poll())
    group.stop(grace_s=30.0)
    assert not any(status.running for status in group.poll())
    assert [status.lost for status in group.poll()] == [None, None]
    ended = group.poll()
    group.stop(grace_s=0.0)
    assert group.poll() == ended


def test_the_last_lines_are_at_hand_with_the_exit_code(case: Case) -> None:
    case.prepare()
    group = case.launcher.start([case.spec(0), case.failing()])
    try:
        wait_until(lambda: not by_name(group)["worker-1"].running, "worker-1 to fail")
        assert by_name(group)["worker-1"] == ProcessStatus("worker-1", 1)
        assert "Traceback" in group.log_tail("worker-1", 100)
        assert len(group.log_tail("worker-1", 1).splitlines()) == 1
        assert group.log_tail("worker-7") == ""
        assert by_name(group)["worker-0"].running, "the others go on"
    finally:
        group.stop(grace_s=0.0)


def test_a_killed_process_is_gone_and_can_be_started_again(case: Case, group: WorkerGroup) -> None:
    group.kill("worker-0")
    wait_until(lambda: not by_name(group)["worker-0"].running, "the exit code of worker-0")
    assert by_name(group)["worker-0"].exit_code == -9
    assert by_name(group)["worker-1"].running
    group.add(case.spec(0, incarnation=2))
    assert by_name(group)["worker-0"].running
    assert list(by_name(group)) == ["worker-0", "worker-1"]


def test_one_more_process_may_join(case: Case) -> None:
    case.prepare()
    group = case.launcher.start([case.spec(0)])
    try:
        group.add(case.spec(1))
        assert all(by_name(group)[name].running for name in ("worker-0", "worker-1"))
    finally:
        group.stop(grace_s=0.0)


def test_a_start_that_fails_is_one_sentence_and_leaves_nothing(case: Case) -> None:
    """That no process is left is seen by the hygiene of all tests."""
    case.prepare()
    case.refuse_starts()
    with pytest.raises(LaunchError, match=r"worker-0|a: FileNotFoundError: .*'/nowhere/python'"):
        case.launcher.start([case.spec(0), case.spec(1)])


def test_another_set_of_processes_may_follow(case: Case) -> None:
    """A run that changes its processes starts the next ones when the former are gone."""
    case.prepare()
    for _ in range(2):
        group = case.launcher.start([case.spec(0)])
        assert by_name(group)["worker-0"].running
        group.stop(grace_s=0.0)
        assert not by_name(group)["worker-0"].running


def test_closing_may_come_at_any_time(case: Case) -> None:
    case.launcher.close()
    case.launcher.close()


def test_what_the_fake_does_is_written_down_by_a_test(tmp_path: Path) -> None:
    script = Script(exits={"worker-0": (3,)}, refused=("worker-1",))
    launcher = FakeLauncher(LaunchRequest(JobSpec(workers=2), tmp_path, tmp_path), script)
    case = FakeCase(tmp_path, pytest.MonkeyPatch())
    case.launcher = launcher
    case.prepare()
    with pytest.raises(LaunchError, match="cannot start worker-1"):
        launcher.start([case.spec(0), case.spec(1)])
    [group] = launcher.groups
    assert group.poll() == [ProcessStatus("worker-0", 3)]
    assert group.graces == [0.0]
    group.add(case.spec(0))
    group.lose("worker-0", "the machine is gone")
    assert group.poll() == [ProcessStatus("worker-0", None, "the machine is gone")]
