"""Schedulers that lend the machines of a pool, those of other packages too, and the ways there."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.agent.ssh import LocalRoute, SshRoute
from phalanx.errors import SpecError
from phalanx.pool.scheduler import Lease, lease_of, open_routes
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.pool_file import load_pool
from phalanx.spec.scheduler import SlurmSpec

LAB = """\
from contextlib import contextmanager
from phalanx.agent.ssh import LocalRoute
from phalanx.pool.scheduler import Lease, Scheduler
from phalanx.spec.scheduler import SchedulerKind, SchedulerSpec


class LabSpec(SchedulerSpec):
    room: str


class Lab(Scheduler):
    def machines(self, defaults):
        return [{"host": f"{self.spec.room}-{number}"} for number in (1, 2)]

    @contextmanager
    def routes(self, pool):
        yield LocalRoute

    def lease(self):
        return Lease(f"lab {self.spec.room}")


LAB = SchedulerKind("lab_of_ours:LAB", LabSpec, "lab_of_ours:Lab")
NOT = SchedulerKind("lab_of_ours:NOT", LabSpec, "lab_of_ours:LabSpec")
"""


def test_a_scheduler_of_another_package_lends_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab_of_ours.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "lab.yaml"
    path.write_text("scheduler: {name: 'lab_of_ours:LAB', room: b2}\ndefaults: {slots: 3}\n")
    pool = load_pool(path).spec
    assert [(one.title, one.slots) for one in pool.machines] == [("b2-1", 3), ("b2-2", 3)]
    assert pool.reached_by == "lab_of_ours:LAB"
    assert lease_of(pool) == Lease("lab b2", restarts=0)
    with open_routes(pool) as route:
        assert route(pool.machines[0]) == LocalRoute(pool.machines[0])
    path.write_text("scheduler: {name: 'lab_of_ours:LAB'}\n")
    with pytest.raises(SpecError, match="room is missing"):
        load_pool(path)


def test_listed_machines_are_reached_over_ssh() -> None:
    machine = MachineSpec(host="a")
    pool = PoolSpec(machines=(machine,), ssh_config="/lab/config")
    with open_routes(pool) as route:
        assert route(machine) == SshRoute(machine, "/lab/config")
    assert lease_of(pool) is None
    assert pool.reached_by == "/lab/config"
    assert pool.model_copy(update={"scheduler": SlurmSpec()}).reached_by == "slurm"
