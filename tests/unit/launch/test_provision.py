"""Machines made ready for a job, all played by this one: one login each, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.agent.ssh import LocalRoute
from phalanx.errors import LaunchError, PlanError
from phalanx.launch.base import LaunchRequest, PoolRequest
from phalanx.launch.placement import HostAssignment
from phalanx.launch.preflight_host import MachinesUnfit
from phalanx.launch.provision import Provisioned, provision
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from support.there import here


class Logins:
    """Makes routes to this machine, and counts how often each is taken."""

    def __init__(self) -> None:
        self.machines: list[str] = []

    def route(self, machine: MachineSpec) -> LocalRoute:
        logins = self

        class Counted(LocalRoute):
            def command(self, remote: str) -> list[str]:
                logins.machines.append(machine.title)
                return super().command(remote)

        return Counted(machine)


def attempt(
    request: LaunchRequest,
    pool: PoolRequest,
    logins: Logins,
    then: Callable[[Provisioned], None] = lambda ready: None,
) -> None:
    with provision(request, pool, route=logins.route) as ready:
        then(ready)


@pytest.fixture
def logins() -> Logins:
    return Logins()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchRequest:
    # Code and data are sent to the home directory of the machines.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return LaunchRequest(JobSpec(workers=2), tmp_path / "data", tmp_path / "cache")


def pool(tmp_path: Path, names: str, **fields: object) -> PoolRequest:
    own = {"address": "127.0.0.1", **fields}
    machines = tuple(
        MachineSpec.model_validate({**here(n, workdir=tmp_path / n).machine.model_dump(), **own})
        for n in names
    )
    return PoolRequest(PoolSpec(pool="p", machines=machines), source="pool.yaml")


def test_every_machine_is_logged_in_to_once(
    tmp_path: Path, job: LaunchRequest, logins: Logins
) -> None:
    told: list[str] = []
    wanted = replace(job, on_progress=told.append)
    with provision(wanted, pool(tmp_path, "abc"), route=logins.route) as ready:
        assert list(ready.group.by_name) == ["a", "b"], "c has nothing to do"
        assert [slot.machine for slot in ready.placement.workers] == ["a", "b"]
        assert [one.machine for one in ready.capacities] == ["a", "b"]
        assert all(host.session.fault is None for host in ready.group.by_name.values())
        ready.group.begin("run", limit_s=60.0)
        assert (tmp_path / "a" / "run@a" / "events").is_dir()
    assert sorted(logins.machines) == ["a", "b", "c"]
    assert not any((tmp_path / name).exists() for name in "abc")
    assert told[0] == "asking 3 machines"


def test_helpers_count_among_the_processes_of_a_machine(
    tmp_path: Path, job: LaunchRequest, logins: Logins
) -> None:
    """One worker on a, and its server and evaluator go where there is room: they need memory."""
    wanted = replace(
        job,
        job=JobSpec.model_validate(
            {"workers": 1, "strategy": {"name": "parameter_server", "servers": 2}}
        ),
    )
    machines = pool(tmp_path, "a", memory="600MB")
    with pytest.raises(MachinesUnfit, match=r"a: 4 processes need 1\.05 GB of memory, and 0\.60"):
        attempt(wanted, machines, logins)
    assert logins.machines == ["a"]


def test_what_is_known_without_asking_is_said_without_asking(
    tmp_path: Path, job: LaunchRequest, logins: Logins
) -> None:
    many = replace(job, job=JobSpec(workers=5))
    with pytest.raises(PlanError, match="5 workers do not fit: 2 machines have 2 slots"):
        attempt(many, pool(tmp_path, "ab"), logins)
    planned = replace(pool(tmp_path, "ab"), assignments=(HostAssignment("z", workers=1),))
    with pytest.raises(PlanError, match=r"the plan gives work to z, which pool\.yaml does not"):
        attempt(job, planned, logins)
    assert logins.machines == []


def test_a_machine_that_cannot_take_part_is_named_and_all_sessions_are_closed(
    tmp_path: Path, job: LaunchRequest, logins: Logins
) -> None:
    """That no process is left is seen by the hygiene of all tests."""
    machines = pool(tmp_path, "ab")
    broken = machines.pool.machines[1].model_copy(update={"address": "192.0.2.1"})
    changed = machines.pool.model_copy(update={"machines": (machines.pool.machines[0], broken)})
    with pytest.raises(MachinesUnfit, match=r"b: 192\.0\.2\.1 is none of its own addresses") as e:
        attempt(job, replace(machines, pool=changed), logins)
    assert list(e.value.facts["faults"]) == ["b"]
    assert str(e.value).endswith("--without b leaves it out")
    assert sorted(logins.machines) == ["a", "b"]


def test_a_run_that_fails_leaves_nothing_either(
    tmp_path: Path, job: LaunchRequest, logins: Logins
) -> None:
    def fail(ready: Provisioned) -> None:
        ready.group.begin("run", limit_s=60.0)
        raise LaunchError("on purpose")

    with pytest.raises(LaunchError, match="on purpose"):
        attempt(job, pool(tmp_path, "ab"), logins, fail)
    assert not (tmp_path / "a").exists()
