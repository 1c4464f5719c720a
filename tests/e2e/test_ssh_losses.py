"""Runs over ssh that lose what matters most, and what is on the wire and the disks meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from phalanx.agent.session import Session
from phalanx.agent.ssh import SshRoute
from phalanx.pool.emulate.layout import prefix_of
from phalanx.records.events import Epoch, ProcessSample, Refused
from phalanx.records.log import read_events, read_logs
from phalanx.spec.pool_file import load_pool
from support.lab import HOSTS, LIMIT_S, SERVED, Lab, make_whole, running_lab
from support.waiting import wait_until

pytestmark = pytest.mark.full

# A number that is the same in all four bytes of its place, so that it stands out in a stream.
MARK = b"PLXA"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("losses")) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _nothing_stays(lab: Lab) -> Iterator[None]:
    yield
    make_whole(lab)


def host_of(run: Path, process: str) -> str | None:
    """The machine on which a process shows life; None: its records have not come yet."""
    log = run / "events" / f"{process}.jsonl"
    samples = read_events(log, ProcessSample) if log.exists() else ()
    hosts = [one.host for one in samples if isinstance(one, ProcessSample)]
    return hosts[-1] if hosts else None


def finish(run: subprocess.Popen[str]) -> str:
    _, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    return said


def num_epochs(path: Path) -> int:
    return sum(len(epochs) for epochs in read_logs(path / "events", Epoch).values())


@pytest.mark.parametrize(
    ("process", "also"), [("server-0", "worker-0"), ("evaluator-0", "worker-1")]
)
def test_a_served_run_survives_the_loss_of_any_one_machine(
    lab: Lab, process: str, also: str
) -> None:
    """The first worker goes with the only server, another one with the evaluator, as by a cable."""
    before = lab.num_runs()
    run = lab.start("--set", "epochs=100000", "--set", f"strategy={SERVED}")
    try:
        path = lab.await_training(before)
        lost = wait_until(lambda: host_of(path, process), "its record", limit_s=LIMIT_S)
        assert host_of(path, also) == lost
        lab.cluster.switch_link(lost, on=False)
        wait_until(lab.causes, "the loss to be noticed", limit_s=LIMIT_S)
        wait_until(lambda: host_of(path, process) != lost, "it to move", limit_s=LIMIT_S)
        trained = num_epochs(path)
        wait_until(lambda: num_epochs(path) >= trained + 3, "the run to go on", limit_s=LIMIT_S)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == 130, said
    assert {f"machine {lost}: " in cause for cause in lab.causes()} == {True}, "nobody else is lost"
    assert f"go on without {also}" in lab.decisions()


@pytest.mark.parametrize("strategy", ["allreduce", SERVED], ids=["all", "ps"])
def test_a_suspended_controller_loses_no_machine(lab: Lab, strategy: str) -> None:
    before = lab.num_runs()
    run = lab.start(
        *("--set", "epochs=60", "--set", f"strategy={strategy}"),
        *("--set", "deadlines.controller_s=60"),
    )
    lab.await_training(before)
    suspend(run, 20.0)
    said = finish(run)
    assert lab.causes() == []
    assert "lost" not in said


@pytest.mark.parametrize("strategy", ["allreduce", SERVED], ids=["all", "ps"])
def test_a_controller_that_was_suspended_for_too_long_says_so(lab: Lab, strategy: str) -> None:
    """The machines have ended their processes by then: there is nobody to go on with."""
    before = lab.num_runs()
    run = lab.start(
        *("--set", "epochs=100000", "--set", f"strategy={strategy}"),
        *("--set", "deadlines.controller_s=6"),
    )
    try:
        lab.await_training(before)
        suspend(run, 20.0)
        _, said = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == 4, said
    assert "the controller itself had not run for" in said
    assert "please report" not in said


def suspend(run: subprocess.Popen[str], seconds: float) -> None:
    """Stop the controller for longer than any worker or machine may be silent for."""
    os.kill(run.pid, signal.SIGSTOP)
    threading.Event().wait(seconds)
    os.kill(run.pid, signal.SIGCONT)


@pytest.mark.parametrize("strategy", ["allreduce", SERVED], ids=["all", "ps"])
def test_machines_clean_up_when_that_of_the_controller_is_off(lab: Lab, strategy: str) -> None:
    """As by its power switch: nothing says goodbye, every machine is alone."""
    before = lab.num_runs()
    run = lab.start("--set", "epochs=100000", "--set", f"strategy={strategy}")
    try:
        lab.await_training(before)
        run.send_signal(signal.SIGSTOP)
        for host in HOSTS:
            lab.cluster.switch_link(host, on=False)
        # `deadlines.controller_s` is six seconds; no process and no directory stays.
        wait_until(lambda: not lab.leftovers(), "the hosts to be clean", limit_s=LIMIT_S)
    finally:
        run.kill()
        run.communicate()


@contextmanager
def captured(lab: Lab) -> Iterator[list[bytes]]:
    """All packets to and from the hosts."""
    prefix = prefix_of(lab.folder / "state" / "lab")
    packets: list[bytes] = []
    ended = threading.Event()

    def listen(index: int) -> None:
        # Every protocol; 3 is ETH_P_ALL.
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
            wire.bind((f"{prefix}-{index}", 0))
            wire.settimeout(0.2)
            while not ended.is_set():
                try:
                    packets.append(wire.recv(1 << 16))
                except TimeoutError:
                    continue

    names = [name for _, name in socket.if_nameindex() if name.startswith(f"{prefix}-")]
    indices = sorted(int(name.rpartition("-")[2]) for name in names if name[-1].isdigit())
    threads = [threading.Thread(target=listen, args=(index,)) for index in indices]
    for thread in threads:
        thread.start()
    try:
        yield packets
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def write_marked_model(lab: Lab) -> None:
    """A network whose parameters are a pattern that no update changes."""
    [value] = struct.unpack("<f", MARK)
    (lab.folder / "marked.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Marked(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.mark = nn.Parameter(torch.full((20000,), {value!r}))\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "        print('PRINTED-' + 'IN-THE-CLEAR', flush=True)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x.flatten(1)) + 0.0 * self.mark.sum()\n"
        "def build():\n"
        "    return Marked()\n"
    )


@pytest.mark.parametrize("encrypt", ["auto", "never"])
@pytest.mark.parametrize(
    "kind", ["parameter_server, servers: 1", "allreduce", "local_sgd"], ids=["ps", "all", "local"]
)
def test_nothing_readable_is_on_the_wire_between_machines(
    lab: Lab, kind: str, encrypt: str
) -> None:
    """Switched off, the parameters are seen: so the capture would see them."""
    write_marked_model(lab)
    strategy = f"{{name: {kind}, encrypt: {encrypt}}}"
    with captured(lab) as packets:
        done = lab.train(
            *("job.yaml", "--set", "model=marked:build", "--set", f"strategy={strategy}"),
            *("--without", "c", "--without", "d"),
        )
    assert done.returncode == 0, done.stderr
    assert len(packets) > 100
    assert any(MARK * 8 in one for one in packets) == (encrypt == "never")
    for text in (b"PRINTED-IN-THE-CLEAR", b"worker-1", b"secret_key", b"nn.Parameter"):
        assert not any(text in one for one in packets), text
    assert b"PRINTED-IN-THE-CLEAR" in (lab.run_dir() / "logs" / "worker-1.log").read_bytes()


def group_ports(lab: Lab, host: str) -> set[int]:
    """Ports at which the worker of a host listens: those of its group."""
    found = set()
    for pid in lab.processes(host, "phalanx.worker"):
        # In the network of the host, which this process is not in.
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        listening = {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inode = os.readlink(descriptor).removeprefix("socket:[").removesuffix("]")
                found |= {listening[inode]} if inode in listening else set()
    return found


def test_strangers_at_the_ports_of_a_group_change_not_a_bit_and_are_recorded(lab: Lab) -> None:
    machines = ("--without", "c", "--without", "d", "--set", "epochs=60")
    addresses = {one.name: one.address for one in load_pool(lab.pool).spec.machines}
    results = []
    for is_visited in (False, True):
        before = lab.num_runs()
        run = lab.start(*machines)
        path = lab.await_training(before, num_epochs=1)
        if is_visited:
            for host in ("a", "b"):
                ports = group_ports(lab, host)
                assert ports, f"the worker on {host} has no port"
                for port in ports:
                    for said in (bytes(200), b"PHX1\0\1" + bytes(48), b""):
                        visit(str(addresses[host]), port, said)
        finish(run)
        summary = json.loads((path / "summary.json").read_text())
        results.append(summary["parameters_sha256"])
        refused = [
            sum(one.reasons.values())
            for process in ("worker-0", "worker-1")
            for one in list(read_events(path / "events" / f"{process}.jsonl", Refused))[-1:]
            if isinstance(one, Refused)
        ]
        assert refused == ([3, 3] if is_visited else [])
    assert results[0] == results[1]


def visit(host: str, port: int, said: bytes) -> None:
    """Connect, say something, and be shown the door without a word."""
    heard = b""
    with socket.create_connection((host, port), timeout=LIMIT_S) as sock:
        try:
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            heard = sock.recv(1000)
        except TimeoutError:
            raise
        except OSError:
            pass  # shown the door before it had finished
    assert heard == b""


def test_keys_are_in_no_file_no_environment_and_no_command_of_a_machine(lab: Lab) -> None:
    secret = "S3CR3T" * 7
    machine = load_pool(lab.pool).spec.machines[0]
    folder = Path(machine.workdir) / "run@a"
    with closing(Session(SshRoute(machine, str(lab.pool.with_name("ssh_config"))))) as session:
        session.open()
        order: dict[str, object] = {"do": "begin", "folder": str(folder), "machine": "a"}
        session.ask({**order, "token": "t", "limit_s": LIMIT_S}, LIMIT_S)
        code = "import sys; print(len(sys.stdin.readline()), flush=True); sys.stdin.read()"
        order = {
            "do": "start",
            "name": "worker-0",
            "serial": 1,
            "command": [machine.python, "-c", code],
            "environment": {},
            "directory": "/",
            "spec": {"secret_key": secret},
            "warm": False,
        }
        session.ask(order, LIMIT_S)
        log = folder / "logs" / "worker-0.log"
        wait_until(lambda: log.exists() and log.read_text(), "the process to have its spec")
        found = [path for path in folder.rglob("*") if path.is_file()]
        # Open files include deleted ones.
        for pid in lab.cluster.processes("a"):
            process = Path(f"/proc/{pid}")
            found += [process / "environ", process / "cmdline"]
            found += [one for one in (process / "fd").iterdir() if one.is_file()]
        assert len(found) > 10
        assert [path for path in found if secret.encode() in path.read_bytes()] == []
        session.ask({"do": "end"}, LIMIT_S)
