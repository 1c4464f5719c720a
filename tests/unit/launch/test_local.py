"""Real processes; each ends before it would import torch."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from phalanx.errors import LaunchError
from phalanx.launch.base import LaunchRequest
from phalanx.launch.fork_server import OFF, OWN, WarmStart
from phalanx.launch.local import LocalGroup, LocalLauncher
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import WorkerSpec
from phalanx.wire.fork_client import ForkedProcess
from support.leaks import watch_children_of
from support.there import is_alive
from support.waiting import wait_until
from support.warm import running_fork_server


def spec(folder: Path, rank: int = 0, *, role: str = "worker", **fields: object) -> WorkerSpec:
    """A worker that waits for a controller that is not there."""
    values: dict[str, object] = {
        "job": JobSpec(),
        "role": role,
        "rank": rank,
        "incarnation": 1,
        "run_dir": str(folder),
        "data_root": str(folder),
        "cache_root": str(folder),
        "threads": 1,
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


def launcher(folder: Path) -> LocalLauncher:
    """A launcher whose run directory is a folder."""
    made = LocalLauncher(LaunchRequest(JobSpec(), folder, folder))
    made.allocate(RunDir(folder))
    return made


def orphan(folder: Path, rank: int = 0) -> WorkerSpec:
    """A worker whose parent is not the one it was told of: it ends itself at once."""
    return spec(folder, rank, parent_pid=1)


def awaits_sigterm(pid: int) -> bool:
    """Whether a process has blocked SIGTERM for all but the thread that waits for it."""
    [blocked] = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(blocked, 16) & (1 << (signal.SIGTERM - 1)))


@pytest.fixture(scope="module")
def fork_server() -> Iterator[str]:
    with running_fork_server() as server:
        assert server.pid is not None
        with watch_children_of(server.pid):
            yield server.address


@pytest.fixture(params=["cold", "warm"])
def group(tmp_path: Path, request: pytest.FixtureRequest, fork_server: str) -> Iterator[LocalGroup]:
    group = LocalGroup(tmp_path, WarmStart(OFF if request.param == "cold" else fork_server))
    yield group
    group.stop(grace_s=0.0)
    kinds = {type(child) for child in group._children.values()}
    assert kinds == {Popen if request.param == "cold" else ForkedProcess}


def test_a_process_is_running_until_it_is_stopped(group: LocalGroup, tmp_path: Path) -> None:
    group.add(spec(tmp_path))
    [status] = group.poll()
    assert status.process == "worker-0"
    assert status.running
    group.stop(grace_s=10.0)
    [status] = group.poll()
    assert not status.running
    group.stop(grace_s=10.0)


def test_a_process_that_ends_is_reported_with_its_code(group: LocalGroup, tmp_path: Path) -> None:
    group.add(orphan(tmp_path))
    wait_until(lambda: not group.poll()[0].running, "the orphan to end itself")
    assert group.poll()[0].exit_code == 1


def test_killing_one_leaves_the_others(group: LocalGroup, tmp_path: Path) -> None:
    for rank in range(2):
        group.add(spec(tmp_path, rank))
    group.kill("worker-0")
    killed, other = group.poll()
    assert killed.exit_code == -signal.SIGKILL
    assert other.running


def test_an_ended_process_can_be_started_again(group: LocalGroup, tmp_path: Path) -> None:
    group.add(spec(tmp_path))
    group.kill("worker-0")
    group.add(spec(tmp_path))
    [status] = group.poll()
    assert status.running


def test_a_frozen_process_is_stopped_within_the_grace(group: LocalGroup, tmp_path: Path) -> None:
    group.add(spec(tmp_path))
    worker = psutil.Process(group._children["worker-0"].pid)
    wait_until(lambda: awaits_sigterm(worker.pid), "the worker to await SIGTERM in its thread")
    worker.suspend()
    wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, "the worker to freeze")
    group.stop(grace_s=60.0)
    # Asked, not killed: it heard SIGTERM although it was frozen when it came.
    assert group.poll()[0].exit_code == 128 + signal.SIGTERM


def test_what_a_process_printed_can_be_read(group: LocalGroup, tmp_path: Path) -> None:
    # A core that is not there.
    group.add(spec(tmp_path, cpus=(99_999,)))
    wait_until(lambda: not group.poll()[0].running, "the worker to fail")
    assert "Traceback" in group.log_tail("worker-0", num_lines=500)
    assert len(group.log_tail("worker-0", num_lines=2).splitlines()) == 2
    assert group.log_tail("never started") == ""


HELPERS = """
import os, subprocess, sys, time
def note(name, pid):
    with open(os.path.join({folder!r}, name), "w") as file:
        file.write(str(pid))
# One in the session, one that has left it, one forked, and one forked that has left its parent too.
note("in-session", subprocess.Popen(["sleep", "600"]).pid)
note("own-session", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
for name in ("forked", "daemon"):
    pid = os.fork()
    if pid == 0:
        if name == "daemon":
            os.setsid()
            if os.fork():
                os._exit(0)
        note(name, os.getpid())
        time.sleep(600)
        os._exit(0)
note("ready", os.getpid())
"""


@pytest.mark.parametrize("how", ["stop", "kill", "exit"])
def test_what_a_worker_has_started_ends_with_it(
    group: LocalGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As loaders of data, or whatever else the user's code starts."""
    code = tmp_path / "code"
    code.mkdir()
    then = "sys.exit(3)" if how == "exit" else "time.sleep(600)"
    (code / "with_helpers.py").write_text(HELPERS.format(folder=str(tmp_path)) + then)
    monkeypatch.setenv("PYTHONPATH", str(code))
    monkeypatch.setattr(WorkerSpec, "module", "with_helpers")
    group.add(spec(tmp_path))
    paths = [tmp_path / name for name in ("in-session", "own-session", "forked", "daemon", "ready")]
    wait_until(
        lambda: all(path.exists() and path.read_text() for path in paths), "helpers", limit_s=60.0
    )
    pids = {path.name: int(path.read_text()) for path in paths}
    if how == "exit":
        wait_until(lambda: not group.poll()[0].running, "the worker to end")
        assert group.poll()[0].exit_code == 3
    elif how == "kill":
        group.kill("worker-0")
    else:
        group.stop(grace_s=0.0)
    for name, pid in pids.items():
        wait_until(lambda one=pid: not is_alive(one), f"{name} to end")


def test_the_secret_is_neither_on_the_command_line_nor_in_the_environment(
    group: LocalGroup, tmp_path: Path
) -> None:
    secret = "S3CR3T" * 7
    group.add(spec(tmp_path, secret_key=secret))
    pid = group._children["worker-0"].pid
    for name in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert secret not in repr(spec(tmp_path, secret_key=secret))


def test_a_program_that_is_not_there_is_a_launch_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LaunchError, match=r"cannot start worker-0 with /nowhere/python: No such"):
        launcher(tmp_path).start([spec(tmp_path)])


def test_a_failed_start_leaves_no_process_behind(tmp_path: Path) -> None:
    # The log of the second cannot be opened; the hygiene fixture sees whether the first is gone.
    with pytest.raises(OSError, match="No such file"):
        launcher(tmp_path).start([spec(tmp_path), spec(tmp_path)])
    (tmp_path / "logs").mkdir()
    with pytest.raises(OSError, match="No such file"):
        launcher(tmp_path).start([spec(tmp_path), spec(tmp_path, role="no/where")])


def test_a_group_ends_the_fork_server_that_it_owns(tmp_path: Path) -> None:
    # The hygiene fixture sees whether the fork server is gone.
    group = LocalGroup(tmp_path, WarmStart(OWN))
    group.prepare([orphan(tmp_path, rank) for rank in range(2)])
    try:
        group.add(orphan(tmp_path))
        assert isinstance(group._children["worker-0"], ForkedProcess)
        wait_until(lambda: not group.poll()[0].running, "the orphan to end itself")
        assert group.poll()[0].exit_code == 1
    finally:
        group.stop(grace_s=0.0)


def test_a_framework_that_starts_threads_is_never_forked(tmp_path: Path, fork_server: str) -> None:
    group = LocalGroup(tmp_path, WarmStart(fork_server))
    try:
        group.add(orphan(tmp_path).model_copy(update={"job": JobSpec(backend="tensorflow")}))
        assert isinstance(group._children["worker-0"], Popen)
        wait_until(lambda: not group.poll()[0].running, "the orphan to end itself")
    finally:
        group.stop(grace_s=0.0)
