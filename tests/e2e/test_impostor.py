"""Strangers at every port of a run with servers get nothing and change nothing: the same bits.

Neither do strangers at the ports of a group of workers, from before it forms.

bsp adds gradients in the order of workers, not of arrival, so two runs of one job can be compared
bit by bit, however the strangers disturb their timing.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from phalanx.records.events import Failure, Served
from phalanx.records.rundir import RunDir
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.messages import Done, Hello
from phalanx.wire.tokens import present_token
from support.runs import LIMIT_S, Place, events_of
from support.waiting import wait_until

# A user's network that tells everyone the public keys, and waits in its 40th step as long as the
# file `gate` is there, so that strangers come in the middle of the training for certain.
USER_MODEL = """
import gc, json, os, threading
from pathlib import Path
from torch import nn
from phalanx.paramserver.client import Client
from phalanx.spec.worker import WorkerSpec

class Net(nn.Sequential):
    calls = 0

    def forward(self, inputs):
        if self.training:
            self.calls += 1
            if self.calls == 40 and Path("gate").exists():
                publish()
                wait_at_gate()
        return super().forward(inputs)

def publish():
    keys = {}
    for one in gc.get_objects():
        if isinstance(one, WorkerSpec):
            keys[one.control_address] = one.controller_key
        elif isinstance(one, Client):
            keys |= {address.door: address.public_key for address in one._connections.addresses}
    own = Path(f"keys-{os.getpid()}.tmp")
    own.write_text(json.dumps(keys))
    os.replace(own, "keys.json")

def wait_at_gate():
    pause = threading.Event()
    for _ in range(6000):
        if not Path("gate").exists():
            return
        pause.wait(0.01)
    raise TimeoutError("the gate was never opened")

def build(input_shape, num_classes):
    height, breadth, channels = input_shape
    return Net(nn.Flatten(), nn.Linear(height * breadth * channels, 32), nn.ReLU(),
               nn.Linear(32, num_classes))
"""
JOB: dict[str, Any] = {
    "name": "visited",
    "model": "my_nets:build",
    "data": "digits",
    "batch": {"global": 64},
    "optimizer": {"name": "adam", "lr": 0.002},
    "epochs": 4,
    "workers": 2,
    "strategy": {"name": "parameter_server", "consistency": "bsp", "servers": 1},
}
DECIDED = (
    "parameters_sha256",
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "test_loss",
    "test_accuracy",
    "samples",
    "updates",
)
REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)
VISIT_S = 10.0
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"  # ZMTP 3.0, up to the mechanism's name

Visit = Callable[[int], None]
Socket = zmq.Socket[bytes]


@contextmanager
def stranger(prepare: Callable[[Socket], None]) -> Iterator[Socket]:
    """A socket that insists, with everything that a rightful peer would say in its queue."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        prepare(dealer)
        yield dealer


def visit_over_zeromq(port: int, prepare: Callable[[Socket], None]) -> None:
    """Connect, say plausible and impossible things, and be refused."""
    with stranger(prepare) as dealer:
        monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | REFUSED)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        # Once it has been refused, there is no connection left that would take the rest.
        with suppress(zmq.Again):
            for message in (Hello(pid=1, host="elsewhere"), Done()):
                dealer.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
            dealer.send(bytes(8 << 20), zmq.NOBLOCK)
            dealer.send_multipart([b"x"] * 100, zmq.NOBLOCK)
        assert monitor.poll(int(VISIT_S * 1000)), f"port {port} does not answer"
        event = recv_monitor_message(monitor)["event"]
        assert event & REFUSED, f"port {port} lets a stranger in"
        assert not dealer.poll(0), f"port {port} answers a stranger"
        dealer.disable_monitor()
        monitor.close(linger=0)


def without_a_key(port: int) -> None:
    visit_over_zeromq(port, lambda dealer: None)


def with_a_wrong_server_key(port: int) -> None:
    wrong = KeyPair.make().public
    visit_over_zeromq(port, lambda dealer: secure_client(dealer, KeyPair.make(), wrong))


def with_a_guessed_token(port: int) -> None:
    visit_over_zeromq(port, lambda dealer: present_token(dealer, "0" * 64))


def with_garbage(port: int) -> None:
    noise = random.Random(port).randbytes(200_000)
    _visit_over_tcp(port, noise)
    # After a greeting that is in order: a frame of nearly 2**63 bytes, and then noise.
    greeting = GREETING + b"NULL".ljust(20, b"\0") + bytes(32)
    _visit_over_tcp(port, greeting + b"\x06" + struct.pack(">Q", 2**63 - 1) + noise)
    curve = GREETING + b"CURVE".ljust(20, b"\0") + bytes(32)
    _visit_over_tcp(port, curve + b"\x04\xc8\x05HELLO" + noise[:193] + noise)


def _visit_over_tcp(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=VISIT_S) as connection:
        heard = 0
        try:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while received := connection.recv(4096):
                heard += len(received)
        except TimeoutError:
            raise
        except OSError:
            pass  # shown the door before it had finished
        # A greeting and the word that something is wrong, at most.
        assert heard < 512, f"port {port} told a stranger {heard} bytes"


def listening_ports(pid: int) -> dict[str, list[int]]:
    """Ports of a run's processes, by the log file that they print to."""
    found: dict[str, list[int]] = {}
    # Some are children of the fork server that the session shares; no other run goes on.
    below = psutil.Process().children(recursive=True)
    for process in [psutil.Process(pid), *(one for one in below if one.pid != pid)]:
        # One that ends meanwhile, such as a stage of a start, has no port.
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            # Not its open files: the controller opens the logs of others to read or hand them on.
            printed_to = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
            name = printed_to.stem if printed_to.suffix == ".log" else "controller"
            ports = [
                connection.laddr.port
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            if ports:
                found[name] = ports
    return found


@pytest.fixture
def job_place(place: Place) -> Place:
    (place.folder / "my_nets.py").write_text(USER_MODEL)
    place.write_job(JOB)
    return place


def test_strangers_change_not_a_bit(job_place: Place) -> None:
    place = job_place
    undisturbed = place.summary("job.yaml", "--runs", str(place.folder / "alone"))

    gate, published = place.folder / "gate", place.folder / "keys.json"
    gate.touch()
    visits: list[Visit] = [
        without_a_key,
        with_a_wrong_server_key,
        with_a_guessed_token,
        with_garbage,
    ]
    with place.start("job.yaml", "--json") as training, ExitStack() as silent:
        wait_until(published.exists, "the training to reach the gate", limit_s=LIMIT_S)
        ports = listening_ports(training.process.pid)
        assert set(ports) == {"controller", "server-0"}, "nobody else has a door"
        assert len(ports["server-0"]) == 2, "one for keys and one for data"
        public: dict[str, str] = json.loads(published.read_text())
        keys = {int(address.rsplit(":", 1)[1]): key for address, key in public.items()}
        assert len(keys) == 2
        assert set(keys) <= {port for found in ports.values() for port in found}

        def with_the_right_server_key(port: int) -> None:
            visit_over_zeromq(port, lambda one: secure_client(one, KeyPair.make(), keys[port]))

        for port in [port for found in ports.values() for port in found] * 20:
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=VISIT_S))
        for found in ports.values():
            for port in found:
                for visit in visits:
                    visit(port)
        for port in keys:
            with_the_right_server_key(port)
        assert training.process.poll() is None, training.end()

        # And while it trains on, all the time.
        over = threading.Event()
        count = 0

        def keep_coming() -> None:
            nonlocal count
            while not over.is_set():
                try:
                    with_garbage(ports["server-0"][count % 2])
                except ConnectionRefusedError:
                    return  # the run is over and its doors are gone
                count += 1

        crowd = threading.Thread(target=keep_coming)
        crowd.start()
        gate.unlink()
        try:
            output, errors = training.process.communicate(timeout=LIMIT_S)
        finally:
            over.set()
            crowd.join(VISIT_S * 3)
        assert training.process.returncode == 0, errors
        disturbed = json.loads(output)
    assert count > 0, "nobody came while it trained"
    assert {key: disturbed[key] for key in DECIDED} == {key: undisturbed[key] for key in DECIDED}
    for key in ("pushes", "pushes_applied", "processes_replaced", "staleness_histogram"):
        assert disturbed["serving"][key] == undisturbed["serving"][key], key

    run = RunDir.open(Path(disturbed["run_dir"]))
    assert not [event for event in events_of(run, "controller") if isinstance(event, Failure)]
    [*_, facts] = [e.facts for e in events_of(run, "server-0") if isinstance(e, Served)]
    # Nobody without a key got far enough to be heard, not even to be refused by the server.
    assert facts.refused == 0
    assert set(facts.received_bytes) == {"worker-0", "worker-1", "reader-0"}


@pytest.mark.full
@pytest.mark.parametrize("encrypt", ["auto", "always"], ids=["gloo", "own links"])
def test_strangers_at_the_ports_of_a_group_change_not_a_bit(place: Place, encrypt: str) -> None:
    """They come as soon as there is a port, and say what Gloo would take for a member."""
    strategy = {"name": "allreduce", "encrypt": encrypt}
    place.write_job(JOB | {"model": "mlp", "epochs": 20, "strategy": strategy})
    undisturbed = place.summary("job.yaml", "--runs", str(place.folder / "alone"))
    over, visited = threading.Event(), set[int]()

    def keep_coming(pid: int) -> None:
        with ExitStack() as held:
            while not over.is_set():
                named = listening_ports(pid).items()
                found = {port for name, ports in named if "worker" in name for port in ports}
                for port in found - visited:
                    for number in range(6):
                        with suppress(OSError):
                            address = ("127.0.0.1", port)
                            sock = socket.create_connection(address, timeout=VISIT_S)
                            held.enter_context(sock).sendall(struct.pack("<q", number) + bytes(60))
                visited.update(found)

    with place.start("job.yaml", "--json") as training:
        crowd = threading.Thread(target=keep_coming, args=(training.process.pid,))
        crowd.start()
        try:
            output, errors = training.process.communicate(timeout=LIMIT_S)
        finally:
            over.set()
            crowd.join(VISIT_S * 3)
    assert training.process.returncode == 0, errors
    disturbed = json.loads(output)
    assert visited, "no port was found"
    assert {key: disturbed[key] for key in DECIDED} == {key: undisturbed[key] for key in DECIDED}
