"""Two machines, both played by this one: what happens when one is lost, and who moves where.

What all launchers promise is in `tests/contract/test_launcher.py`.
"""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from phalanx.agent.session import Session
from phalanx.launch.allocation import PoolAllocation
from phalanx.launch.base import ProcessStatus
from phalanx.launch.fork_server import OFF, OWN
from phalanx.launch.hosts import Host, HostGroup
from phalanx.launch.log_sync import LogSync
from phalanx.launch.placement import HostCapacity, place
from phalanx.launch.ssh import SshGroup
from phalanx.spec.data import DataSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from support.there import children_of, here, is_alive, process_of
from support.waiting import wait_until
from support.warm import starting

CODE = str(Path(str(phalanx.__file__)).parent.parent)
LIMIT_S = 60.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[HostGroup]:
    for part in ("events", "logs"):
        (tmp_path / "run" / part).mkdir(parents=True)
    machines = {}
    for name in ("a", "b"):
        session = Session(here(name, workdir=tmp_path / name))
        hello = session.open()
        machines[name] = Host(
            spec=session.route.machine,
            session=session,
            address="127.0.0.1",
            controller="127.0.0.1",
            python=hello.executable,
            code=(CODE,),
            data=DataSpec(name="digits"),
            data_root="/data",
            cache_root="/cache",
            cpus=tuple(hello.cpus),
        )
    with HostGroup(machines, listen="127.0.0.1") as hosts:
        hosts.begin("run", limit_s=20.0)
        yield hosts
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def spec(hosts: HostGroup, rank: int, host: str) -> WorkerSpec:
    """A worker that waits for a controller that is not there."""
    values: dict[str, object] = {
        "job": JobSpec(),
        "role": "worker",
        "rank": rank,
        "incarnation": 1,
        "host": host,
        "run_dir": hosts.by_name[host].folder,
        "data_root": "/data",
        "cache_root": "/cache",
        "threads": 1,
        "cpus": (),
        "attempt": 1,
        "resume": None,
        "control_address": "tcp://127.0.0.1:9",
        "controller_key": "",
        "public_key": "",
        "secret_key": "",
        "parent_pid": None,
    }
    return WorkerSpec.model_validate(values)


def started(hosts: HostGroup, tmp_path: Path) -> SshGroup:
    group = SshGroup(hosts, tmp_path / "run", silence_s=10.0)
    group.start([spec(hosts, 0, "a"), spec(hosts, 1, "b")])
    return group


def by_name(group: SshGroup) -> dict[str, ProcessStatus]:
    return {status.process: status for status in group.poll()}


def test_a_machine_is_lost_with_its_processes_and_the_others_stay(
    hosts: HostGroup, tmp_path: Path
) -> None:
    group = started(hosts, tmp_path)
    process = process_of(hosts.by_name["b"].session)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: by_name(group)["worker-1"].lost, "b to be missed")
    assert "broke off" in str(by_name(group)["worker-1"].lost)
    assert by_name(group)["worker-0"].lost is None
    group.kill("worker-1")
    wait_until(lambda: not Path(hosts.by_name["b"].folder).exists(), "b to be swept")
    group.stop(grace_s=10.0)


def test_a_machine_that_falls_silent_is_lost(hosts: HostGroup, tmp_path: Path) -> None:
    group = SshGroup(hosts, tmp_path / "run", silence_s=2.5)
    group.start([spec(hosts, 0, "a"), spec(hosts, 1, "b")])
    process = process_of(hosts.by_name["b"].session)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: by_name(group)["worker-1"].lost, "b to be missed")
    assert "nothing was heard of it" in str(by_name(group)["worker-1"].lost)
    wait_until(lambda: not is_alive(process.pid), "the frozen agent to be killed")


def test_a_disk_that_stalls_costs_no_machine(
    hosts: HostGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes waits for the disk; that it came is known at once, and orders are answered."""
    stalled, go_on = threading.Event(), threading.Event()
    append = LogSync.append

    def stall(sync: LogSync, path: str, content: str) -> None:
        stalled.set()
        assert go_on.wait(LIMIT_S)
        append(sync, path, content)

    monkeypatch.setattr(LogSync, "append", stall)
    group = SshGroup(hosts, tmp_path / "run", silence_s=1.5)
    group.start([spec(hosts, 0, "a"), spec(hosts, 1, "b").model_copy(update={"cpus": (9999,)})])
    try:
        assert stalled.wait(LIMIT_S), "worker-1 prints why it fails"
        heard = {name: host.session.heard_s for name, host in hosts.by_name.items()}
        for _ in range(3):
            # Each machine shows life once a second, whatever the disk does.
            for name, host in hosts.by_name.items():
                wait_until(lambda n=name, h=host: h.session.heard_s > heard[n], "life of it")
                heard[name] = host.session.heard_s
            assert [one.lost for one in group.poll()] == [None, None]
        group.kill("worker-0")
        assert [one.lost for one in group.poll()] == [None, None]
        assert by_name(group)["worker-1"].running, "its last lines come before its exit code"
    finally:
        go_on.set()
    wait_until(lambda: by_name(group)["worker-1"].exit_code == 1, "the exit code")
    assert "Traceback" in group.log_tail("worker-1", 100)
    group.stop(grace_s=0.0)


def test_a_controller_that_was_held_up_blames_no_machine(
    hosts: HostGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a suspension: more time has passed than any machine may be silent for."""
    group = started(hosts, tmp_path)
    later = time.monotonic() + 3600.0
    monkeypatch.setattr(group._silence, "_clock", lambda: later)
    assert [one.lost for one in group.poll()] == [None, None]
    group.stop(grace_s=0.0)


def test_a_machine_that_does_not_answer_a_start_is_lost_and_the_run_goes_on(
    hosts: HostGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = SshGroup(hosts, tmp_path / "run", silence_s=60.0)
    group.start([spec(hosts, 0, "a")])
    monkeypatch.setattr("phalanx.launch.ssh._START_S", 0.5)
    process = process_of(hosts.by_name["b"].session)
    os.kill(process.pid, signal.SIGSTOP)
    group.add(spec(hosts, 1, "b"))
    assert "no answer within" in str(by_name(group)["worker-1"].lost)
    assert by_name(group)["worker-0"].running
    group.stop(grace_s=0.0)


def test_a_machine_speaks_for_its_own_processes_alone(hosts: HostGroup, tmp_path: Path) -> None:
    group = started(hosts, tmp_path)
    of_b = hosts.by_name["b"].session.on_news
    forged = base64.b64encode(b"forged\n").decode()
    for path in ("events/controller.jsonl", "events/worker-0.jsonl", "logs/worker-0.log"):
        of_b({"news": "more", "path": path, "content": forged})
    serials = [group._processes[f"worker-{rank}"].serial for rank in (0, 1)]
    of_b({"news": "exit", "name": "worker-0", "serial": serials[0], "code": 0})
    of_b({"news": "exit", "name": "worker-1", "serial": serials[1], "code": 3})
    wait_until(lambda: not by_name(group)["worker-1"].running, "news of itself to be taken")
    assert by_name(group)["worker-0"].running
    found = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(b"forged" in path.read_bytes() for path in found)
    group.stop(grace_s=0.0)


def forked_on(hosts: HostGroup, name: str) -> list[int]:
    """How many processes each fork server of a machine has forked."""
    agent = process_of(hosts.by_name[name].session)
    return [
        len(children_of(pid))
        for pid, command in children_of(agent.pid).items()
        if "phalanx.worker.fork_server" in command
    ]


def test_processes_that_share_a_machine_or_replace_a_lost_one_are_forked(
    hosts: HostGroup, tmp_path: Path
) -> None:
    with starting(OWN):
        group = SshGroup(hosts, tmp_path / "run", silence_s=60.0)
    specs = [spec(hosts, 0, "a"), spec(hosts, 1, "a"), spec(hosts, 2, "b")]
    group.start(specs)
    wait_until(lambda: forked_on(hosts, "a") == [2], "both to be forked", limit_s=LIMIT_S)
    assert forked_on(hosts, "b") == [], "alone it would gain nothing"
    for one in specs[1:]:
        group.kill(one.process)
        group.add(one)
    wait_until(lambda: forked_on(hosts, "a") == [2], "the successor on a", limit_s=LIMIT_S)
    wait_until(lambda: forked_on(hosts, "b") == [1], "the successor on b", limit_s=LIMIT_S)
    assert [one.exit_code for one in group.poll()] == [None] * 3
    group.stop(grace_s=10.0)
    # Asked to end, as a cold one would be.
    assert {one.exit_code for one in group.poll()} <= {-signal.SIGTERM, 128 + signal.SIGTERM}


def test_no_process_is_forked_where_the_user_said_so(hosts: HostGroup, tmp_path: Path) -> None:
    with starting(OFF):
        group = SshGroup(hosts, tmp_path / "run", silence_s=60.0)
    group.start([spec(hosts, 0, "a"), spec(hosts, 1, "a")])
    assert forked_on(hosts, "a") == []
    group.stop(grace_s=0.0)


def test_processes_move_to_machines_that_are_there(hosts: HostGroup) -> None:
    capacities = [HostCapacity("a", cores=2, slots=2), HostCapacity("b", cores=4, slots=1)]
    allocation = PoolAllocation(hosts, place(2, capacities), capacities)
    assert [allocation.slot("worker", rank).machine for rank in (0, 1)] == ["a", "b"]
    assert allocation.slot("server", 0).machine == "b", "it disturbs least there"
    assert not allocation.slot("worker", 0).shares_run_dir
    assert allocation.move("worker", 1, crowd=False)
    assert allocation.slot("worker", 1).machine == "b", "it is still there"
    hosts.lose("b", "gone")
    assert allocation.move("worker", 1, crowd=False)
    assert allocation.move("server", 0, crowd=False)
    assert allocation.slot("worker", 1).machine == allocation.slot("server", 0).machine == "a"
    assert not allocation.move("worker", 2, crowd=False), "both slots are taken"
    assert allocation.move("worker", 2, crowd=True)


def test_no_process_moves_to_a_machine_without_memory_for_it(
    hosts: HostGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacities = [HostCapacity("a", cores=2, slots=2), HostCapacity("b", cores=4, slots=1)]
    allocation = PoolAllocation(hosts, place(2, capacities), capacities)
    hosts.lose("b", "gone")
    monkeypatch.setattr("phalanx.launch.allocation.PROCESS_BYTES", 1 << 60)
    for role, rank in (("worker", 1), ("server", 0)):
        assert not allocation.move(role, rank, crowd=True)
    assert allocation.move("worker", 0, crowd=False), "it is there already"
    assert allocation.slot("server", 0).machine == "a", "a first one was counted before"


def test_everybody_finds_the_others_in_the_environment(hosts: HostGroup) -> None:
    capacities = [HostCapacity("a", cores=1), HostCapacity("b", cores=1)]
    allocation = PoolAllocation(hosts, place(2, capacities), capacities)
    allocation.announce([("worker", 0), ("worker", 1), ("evaluator", 0)])
    own = allocation.environment("worker", 1, run="run")
    assert (own["RANK"], own["WORLD_SIZE"], own["LOCAL_RANK"]) == ("1", "2", "0")
    first = allocation.environment("worker", 0, run="run")
    assert first["MASTER_PORT"] == own["MASTER_PORT"]
    assert allocation.environment("worker", 0, run="run") == first
