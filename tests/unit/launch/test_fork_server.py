"""A real fork server, and processes that end before they would do any work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from phalanx.errors import SpecError
from phalanx.launch.fork_server import (
    OFF,
    OWN,
    WarmStart,
    chosen_fork_server,
    fork_process,
    use_fork_server,
    warm_workers,
)
from phalanx.wire import fork_client
from phalanx.wire.fork_client import ForkedProcess, ForkRefused, ForkServer
from support.leaks import watch_children_of
from support.runs import is_running
from support.waiting import wait_until
from support.warm import running_fork_server, starting

LIMIT_S = 60.0
# Everything that a process can see of how it came to be, except who its parent is.
DESCRIBE = """
import json, os, random, sys
import numpy
json.dump({
    "directory": os.getcwd(),
    # readline sets two behind Python's back, in the process of the tests.
    "variables": {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")},
    "path": sys.path,
    "cores": sorted(os.sched_getaffinity(0)),
    "is_leader": os.getsid(0) == os.getpid() == os.getpgid(0),
    "name": __name__,
    "arguments": len(sys.argv),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "descriptors": sorted(
        int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
    ),
    "terminal": [sys.stdout.line_buffering, sys.stdout.encoding, sys.stdin.encoding],
    "masks": [
        line
        for line in open("/proc/self/status")
        if line.startswith(("SigBlk", "SigIgn", "SigCgt", "Umask"))
    ],
    "stdin": sys.stdin.read(),
}, sys.stdout)
"""
WAIT = "import sys, time\nprint('ready', flush=True)\nwhile True: time.sleep(60)\n"

Fork = Callable[..., ForkedProcess]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with running_fork_server() as server:
        assert server.pid is not None
        with watch_children_of(server.pid):
            yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fork(server: ForkServer, folder: Path) -> Iterator[Fork]:
    """Forks a process that runs the given code; all are gone afterwards."""
    started: list[ForkedProcess] = []

    def start(code: str, at: ForkServer = server) -> ForkedProcess:
        (folder / "asked.py").write_text(code)
        with (folder / "output").open("wb") as output:
            started.append(fork_process(at.address, "asked", output.fileno()))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(LIMIT_S)
        assert process.stdin is not None
        process.stdin.close()


def output(folder: Path) -> str:
    return (folder / "output").read_text()


def _is_gone(pid: int) -> bool:
    return not is_running(pid)


def is_ready(folder: Path) -> bool:
    return output(folder) == "ready\n"


def cold(code: str, folder: Path) -> str:
    """The same by command, as a launcher without a fork server starts it."""
    (folder / "asked.py").write_text(code)
    with (folder / "output").open("wb") as output_file:
        subprocess.run(
            [sys.executable, "-m", "asked"],
            input=b"",
            stdout=output_file,
            start_new_session=True,
            timeout=LIMIT_S,
            check=True,
        )
    return output(folder)


def warm(code: str, folder: Path, fork: Fork) -> str:
    process = fork(code)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(LIMIT_S) == 0
    return output(folder)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('no such thing')", 1),
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_the_exit_code_is_the_one_of_a_cold_process(
    fork: Fork, folder: Path, code: str, exit_code: int
) -> None:
    process = fork(code)
    assert process.wait(LIMIT_S) == exit_code
    assert process.poll() == exit_code
    assert ("ValueError: no such thing" in output(folder)) is ("ValueError" in code)
    # The number may belong to somebody else by now; nothing is sent.
    process.kill()


def test_a_forked_process_sees_what_a_cold_one_sees(
    fork: Fork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["relative", str(folder / "more"), ""]))
    monkeypatch.setenv("NAMED_BY_THE_USER", "value")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        expected = json.loads(cold(DESCRIBE, folder))
        found = json.loads(warm(DESCRIBE, folder, fork))
    finally:
        os.sched_setaffinity(0, before)
    assert found == expected
    assert found["cores"] == [min(before)]
    assert found["is_leader"]


def test_two_forks_share_no_variable(
    fork: Fork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = "import os; print(os.environ.get('FIRST'), os.environ.get('SECOND'))"
    change = "import os; os.environ['SECOND'] = os.environ['FIRST'] = 'changed'"
    monkeypatch.setenv("FIRST", "1")
    assert fork(change).wait(LIMIT_S) == 0
    assert warm(say, folder, fork) == "1 None\n"
    monkeypatch.delenv("FIRST")
    monkeypatch.setenv("SECOND", "2")
    assert warm(say, folder, fork) == "None 2\n"


@pytest.mark.parametrize("source", ["random", "numpy.random", "torch"])
def test_unseeded_draws_differ_between_forks(fork: Fork, folder: Path, source: str) -> None:
    draw = "rand(1).item()" if source == "torch" else "random()"
    code = f"import random, numpy, torch\nprint({source}.{draw})"
    first, second = (warm(code, folder, fork) for _ in range(2))
    assert first != second


@pytest.mark.parametrize("threads", [1, 2])
def test_thread_pools_are_as_large_as_in_a_cold_process(
    fork: Fork, folder: Path, threads: int
) -> None:
    code = f"""
import os
from phalanx.worker.bootstrap import _limit_threads
_limit_threads({threads})
import numpy, torch
from threadpoolctl import threadpool_info
found = [(one["internal_api"], one["num_threads"]) for one in threadpool_info()]
print(sorted(found), torch.get_num_threads(), torch.get_num_interop_threads())
print(os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"])
"""
    found = warm(code, folder, fork)
    assert found == cold(code, folder)
    assert f"('openblas', {threads})" in found


def test_modules_are_loaded_before_the_fork_and_the_users_own_after_it(
    fork: Fork, folder: Path
) -> None:
    (folder / "own_network.py").write_text("LAYERS = 3")
    code = """
import sys
print(all(name in sys.modules for name in ("torch", "phalanx.worker.roles", "zmq")))
import own_network
print(own_network.__file__)
"""
    assert warm(code, folder, fork).splitlines() == ["True", str(folder / "own_network.py")]


def test_signals_reach_the_process_and_its_lifeline_closes(fork: Fork, folder: Path) -> None:
    process = fork(WAIT)
    wait_until(lambda: is_ready(folder), "the process to run")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    process = fork("import sys; sys.stdin.read(); sys.exit(5)")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(LIMIT_S) == 5


def test_a_killed_fork_server_takes_its_processes_along_and_is_noticed(
    fork: Fork, folder: Path
) -> None:
    with running_fork_server() as mortal:
        process = fork(WAIT, mortal)
        wait_until(lambda: is_ready(folder), "the process to run")
        assert mortal.pid is not None
        os.kill(mortal.pid, signal.SIGKILL)
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        assert not is_running(process.pid)
        wait_until(lambda: mortal.pid is None, "the fork server to be gone")
        with pytest.raises(ForkRefused, match="no fork server answers"):
            fork("", mortal)
        assert WarmStart(mortal.address).fork("asked", 1) is None


def test_a_process_can_be_ended_while_its_fork_server_is_frozen(
    fork: Fork, folder: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "_REPORT_S", 0.1)
    process = fork(WAIT)
    wait_until(lambda: is_ready(folder), "the process to run")
    assert server.pid is not None
    frozen = psutil.Process(server.pid)
    frozen.suspend()
    try:
        process.kill()
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        frozen.resume()
    assert fork("").wait(LIMIT_S) == 0


LAUNCHER = """
import sys, time
from phalanx.launch.fork_server import fork_process
from phalanx.wire.fork_client import ForkServer
server = ForkServer()
if len(sys.argv) > 1:
    server.address = sys.argv[1]
else:
    server.start()
process = fork_process(server.address, "asked", 2)
print(process.pid, server.pid or 0, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("owns", [False, True], ids=["shared", "owned"])
def test_a_killed_launcher_leaves_no_process(server: ForkServer, folder: Path, owns: bool) -> None:
    # Deaf to everything but SIGKILL, and with no lifeline of its own tied.
    (folder / "asked.py").write_text(
        f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAIT}"
    )
    arguments = [] if owns else [server.address]
    with (
        (folder / "output").open("wb") as said,
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as launcher,
    ):
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        wait_until(lambda: is_ready(folder), "the process to run")
        launcher.kill()
    for pid in pids:
        if pid:
            wait_until(partial(_is_gone, pid), "what the launcher started to end")
    assert server.pid is not None


@pytest.mark.parametrize("variable", ["OMP_SCHEDULE", "MKL_CBWR", "PYTHONHASHSEED", "LD_PRELOAD"])
def test_a_variable_that_libraries_read_when_loaded_means_a_cold_start(
    fork: Fork, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ForkRefused, match="other variables than the fork server"):
        fork("")


def test_another_umask_means_a_cold_start(fork: Fork) -> None:
    before = os.umask(0o077)
    try:
        with pytest.raises(ForkRefused, match="other umask"):
            fork("")
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "1 more threads"),
        ("kept = socket.socket()", "is a socket of a library"),
    ],
)
def test_a_fork_server_with_a_thread_or_a_socket_refuses(
    fork: Fork, folder: Path, monkeypatch: pytest.MonkeyPatch, tail: str, reason: str
) -> None:
    customised = folder / "site"
    customised.mkdir()
    (customised / "sitecustomize.py").write_text(f"import socket, threading, time\n{tail}\n")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(customised))
        spoilt = ForkServer()
        spoilt.start()
    try:
        with pytest.raises(ForkRefused, match=reason):
            fork("", spoilt)
    finally:
        spoilt.close()


def test_a_fork_server_that_cannot_import_means_a_cold_start(
    fork: Fork, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "torch.py").write_text("raise ImportError('broken')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "site"))
        broken = ForkServer()
        broken.start()
    try:
        with pytest.raises(ForkRefused, match="the fork server"):
            fork("", broken)
    finally:
        broken.close()


def test_closing_ends_it_at_once_even_while_it_imports() -> None:
    server = ForkServer()
    assert server.pid is None
    server.close()
    server.start()
    pid = server.pid
    assert pid is not None
    server.close()
    assert not is_running(pid)
    assert server.pid is None


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match="PHALANX_FORK_SERVER is 'warm'; set it to own, off, or"):
        use_fork_server("warm")


def test_runs_inside_share_one_unless_another_was_chosen() -> None:
    for chosen in (OFF, "@somebody"):
        with starting(chosen), warm_workers() as setting:
            assert setting == chosen
    with starting(OWN):
        with warm_workers(useful=False) as setting:
            assert setting == OWN
        with warm_workers() as setting:
            assert setting == chosen_fork_server()
            assert setting.startswith("@phalanx-")
        assert chosen_fork_server() == OWN


def test_a_single_process_has_no_fork_server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(ForkServer, "start", lambda server: started.append(server))
    for setting, count in ((OWN, 1), (OFF, 4), ("@somebody", 4)):
        WarmStart(setting).prepare(count)
    assert not started
    WarmStart(OWN).prepare(2)
    assert len(started) == 1


def test_no_thread_of_the_launcher_ends_a_fork_server_that_it_started(folder: Path) -> None:
    server = ForkServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        (folder / "asked.py").write_text("")
        with (folder / "output").open("wb") as stream:
            process = fork_process(server.address, "asked", stream.fileno())
        assert process.wait(LIMIT_S) == 0
        assert process.stdin is not None
        process.stdin.close()
    finally:
        server.close()
