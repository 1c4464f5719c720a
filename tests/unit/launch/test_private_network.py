"""Ports of a framework that trusts everybody: kept from others, or refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.errors import LaunchError, SpecError
from phalanx.launch.base import LaunchRequest, PoolRequest
from phalanx.launch.local import LocalLauncher
from phalanx.launch.private_network import PrivateNetwork
from phalanx.launch.ssh import SshLauncher
from phalanx.spec.job import JobSpec
from phalanx.spec.pool import PoolSpec
from support.there import here

# A process of a run: one thread before, as the control channel's, and then the framework.
PROCESS = """
import socket, sys, threading
from phalanx.worker.private_network import PrivateNetworkEntry
network = PrivateNetworkEntry(int(sys.argv[1]))
goes, said = threading.Event(), []
def control():
    goes.wait()
    with socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=20) as connection:
        said.append(connection.recv(5))
thread = threading.Thread(target=control)
thread.start()
network.enter()
server = socket.create_server(("0.0.0.0", 0))
goes.set()
thread.join()
assert said == [b"hello"], said
print(server.getsockname()[1], flush=True)
server.accept()[0].sendall(b"obeyed")
sys.stdin.read()
"""
CLIENT = """
import socket, sys
from phalanx.worker.private_network import PrivateNetworkEntry
PrivateNetworkEntry(int(sys.argv[1])).enter()
with socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=20) as connection:
    print(connection.recv(6).decode())
"""


@pytest.fixture
def network() -> PrivateNetwork:
    made = PrivateNetwork()
    try:
        made.start()
    except LaunchError as error:
        pytest.skip(str(error))
    return made


def test_processes_of_a_run_reach_one_another_and_nobody_else_reaches_them(
    network: PrivateNetwork,
) -> None:
    with closing(network), socket.create_server(("127.0.0.1", 0)) as control:
        arguments = [str(network.pid), str(control.getsockname()[1])]
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            control.settimeout(60.0)
            with control.accept()[0] as connection:
                connection.sendall(b"hello")
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(port)), timeout=5.0).close()
            peer = subprocess.run(
                [sys.executable, "-c", CLIENT, str(network.pid), port],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert peer.stdout.strip() == "obeyed"
        finally:
            process.kill()
            process.communicate()


def request(tmp_path: Path, **fields: object) -> LaunchRequest:
    job = {"backend": "tensorflow", "workers": 2, **fields}
    return LaunchRequest(JobSpec.model_validate(job), tmp_path / "data", tmp_path / "cache")


def test_a_run_here_is_private_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(network: PrivateNetwork) -> None:
        raise LaunchError("no network namespace can be made here (Operation not permitted)")

    monkeypatch.setattr(PrivateNetwork, "start", refuse)
    launcher = LocalLauncher(request(tmp_path))
    with closing(launcher), pytest.raises(SpecError, match=r"run code as you, and no network name"):
        launcher.check()
    with closing(LocalLauncher(request(tmp_path, trust_network=True))) as launcher:
        launcher.check()
        [note] = launcher.notes
    assert "can run code as you" in note
    assert note in caplog.text
    for harmless in ({"workers": 1}, {"backend": "native"}):
        with closing(LocalLauncher(request(tmp_path, **harmless))) as launcher:
            launcher.check()
            assert launcher.notes == ()


def test_a_run_on_several_machines_needs_the_users_word(tmp_path: Path) -> None:
    machines = tuple(here(name, workdir=tmp_path / name).machine for name in "ab")
    pool = PoolRequest(PoolSpec(pool="p", machines=machines), source="pool.yaml")
    launcher = SshLauncher(replace(request(tmp_path), pool=pool))
    with closing(launcher), pytest.raises(SpecError, match="set 'trust_network: true' if everyone"):
        launcher.check()


def test_the_namespace_ends_with_its_run(network: PrivateNetwork) -> None:
    pid = network.pid
    assert pid is not None
    assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    network.close()
    network.close()
    assert network.pid is None
    assert not Path(f"/proc/{pid}").exists()
