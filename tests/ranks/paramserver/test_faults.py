"""Breaks, restarts and strangers, with servers in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pytest
import torch
import zmq

from phalanx.paramserver.client import Client
from phalanx.paramserver.handshake import ConnectAccepted, ConnectRequest, digest_of
from phalanx.wire.bulk import BulkOp, Header, Kind
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.tokens import present_token
from support.paramserver import (
    LIMIT_S,
    ServerProcess,
    Setup,
    client_for,
    exchange,
    small_layout,
    soon,
)

SIZE = 30_000
LAYOUT = small_layout(SIZE)
SGD = {"name": "sgd", "lr": 1.0}


class Site:
    """One server process, and workers that can be connected to it."""

    def __init__(self, stack: ExitStack, *, workers: int, encrypt: bool = False, **rule: object):
        self._stack = stack
        self.keys = [KeyPair.make() for _ in range(workers)]
        self._setup = Setup(
            size=SIZE,
            workers=workers,
            servers=1,
            index=0,
            consistency=dict(rule),
            keys=KeyPair.make(),
            peers=[(keys.public, rank, 1) for rank, keys in enumerate(self.keys)],
            optimizer=SGD,
            encrypt=encrypt,
        )
        self.server = self._start(self._setup)

    def _start(self, setup: Setup) -> ServerProcess:
        server = ServerProcess(setup)
        self._stack.callback(server.stop)
        return server

    def restart(self) -> ServerProcess:
        """A successor that has lost everything."""
        setup = msgspec.structs.replace(
            self._setup, keys=KeyPair.make(), restoring=True, incarnation=2
        )
        self.server = self._start(setup)
        return self.server

    def client(self, worker: int = 0) -> tuple[Client, torch.Tensor, torch.Tensor]:
        client, parameters, gradients = client_for(
            LAYOUT, [self.server.address], self.keys[worker], worker=worker, whole=True
        )
        self._stack.enter_context(client)
        client.connect(soon("the server"))
        return client, parameters, gradients


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin(client: Client, gradients: torch.Tensor, value: float, weight: float = 1.0) -> None:
    gradients.fill_(value * weight)
    client.begin(num_samples=1, weight=weight)
    client.finish()


def test_a_killed_server_goes_on_from_a_worker_s_copy_without_losing_an_update(
    stack: ExitStack,
) -> None:
    site = Site(stack, workers=2, consistency="bsp")
    members = [site.client(worker) for worker in range(2)]

    def round_of(values: tuple[float, float]) -> None:
        for (client, _, gradients), value in zip(members, values, strict=True):
            begin(client, gradients, value, weight=0.5)
        for client, _, _ in members:
            client.wait(soon("the round"))

    round_of((1.0, 3.0))
    # Worker 0 has pushed to the second round, worker 1 has not, when the server dies.
    begin(members[0][0], members[0][2], 1.0, weight=0.5)
    site.server.kill()
    successor = site.restart()
    for client, _, _ in members:
        client.relocate(successor.address)
    successor.expect(donor=0)
    members[0][0].donate(0, number=1)
    begin(members[1][0], members[1][2], 3.0, weight=0.5)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(client.wait, soon("the successor")) for client, _, _ in members]
        for wait in waits:
            wait.result(LIMIT_S)
    round_of((1.0, 3.0))
    for client, parameters, _ in members:
        assert parameters.eq(-6).all()
        assert client.versions == {0: 3}
    assert successor.facts().version == 3


def test_an_async_worker_keeps_its_place_across_a_restart(stack: ExitStack) -> None:
    site = Site(stack, workers=1, consistency="async")
    client, parameters, gradients = site.client()
    gradients.fill_(1.0)
    exchange(client)
    site.server.kill()
    begin(client, gradients, 1.0)
    client.relocate(site.restart().address)
    # The copy may arrive before the server knows from whom it comes.
    client.donate(0, number=1)
    site.server.expect(donor=0)
    client.wait(soon("the successor"))
    assert parameters.eq(-2).all()
    assert client.facts().reconnects == 1


def test_copies_for_two_lost_servers_do_not_displace_each_other(stack: ExitStack) -> None:
    layout, keys = small_layout(SIZE, servers=2), KeyPair.make()
    setups = [
        Setup(
            size=SIZE,
            workers=1,
            servers=2,
            index=index,
            consistency={"consistency": "async"},
            keys=KeyPair.make(),
            peers=[(keys.public, 0, 1)],
            optimizer=SGD,
        )
        for index in range(2)
    ]

    def start(setup: Setup) -> ServerProcess:
        server = ServerProcess(setup)
        stack.callback(server.stop)
        return server

    servers = [start(setup) for setup in setups]
    client, parameters, gradients = client_for(
        layout, [server.address for server in servers], keys, whole=True
    )
    stack.enter_context(client)
    client.connect(soon("the servers"))
    gradients.fill_(1.0)
    exchange(client)
    for server in servers:
        server.kill()
    successors = [
        start(msgspec.structs.replace(s, keys=KeyPair.make(), restoring=True, incarnation=2))
        for s in setups
    ]
    for index, successor in enumerate(successors):
        client.relocate(successor.address)
        # Neither connection is up yet: both copies have to wait.
        client.donate(index, number=1 + index)
        successor.expect(donor=0, number=1 + index)
    begin(client, gradients, 1.0)
    client.wait(soon("the successors"))
    assert parameters.eq(-2).all()
    assert client.versions == {0: 2, 1: 2}


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_push_that_a_break_swallowed_is_sent_again_and_counts_once(
    stack: ExitStack, encrypt: bool
) -> None:
    site = Site(stack, workers=1, encrypt=encrypt, consistency="async")
    client, parameters, gradients = site.client()
    for step in range(1, 21):
        begin(client, gradients, 1.0)
        if step % 2:
            # Cut the connection at a moment when anything between nothing and all has arrived.
            client._connections[0].renew()
        client.wait(soon("the answers"))
        assert parameters.eq(-step).all()
    assert client.facts().reconnects == 10
    facts = site.server.facts()
    assert (facts.pushes, facts.applied, facts.version) == (20, 20, 20)


def test_answers_lost_by_a_break_are_given_again(stack: ExitStack) -> None:
    site = Site(stack, workers=2, consistency="bsp")
    (first, parameters, gradients), (second, _, others) = (site.client(w) for w in range(2))
    begin(first, gradients, 1.0, weight=0.5)
    site.server.facts()
    first._connections[0].renew()
    begin(second, others, 1.0, weight=0.5)
    # The push itself may have been on its way when the connection broke.
    second.wait(soon("the round"), first.attend)
    first.wait(soon("the answers that went nowhere"))
    assert parameters.eq(-1).all()


def test_a_frozen_worker_is_let_go_and_told_when_it_wakes(stack: ExitStack) -> None:
    site = Site(stack, workers=2, consistency="ssp", staleness=1)
    (frozen, _, poison), (worker, parameters, gradients) = (site.client(w) for w in range(2))
    for _ in range(2):
        begin(worker, gradients, 1.0)
        if worker.clock == 1:
            worker.wait(soon("the first"))
    # The second push is held back for the frozen one, until the control plane dismisses it.
    site.server.dismiss("worker-0")
    worker.wait(soon("the second"))
    assert parameters.eq(-2).all()
    begin(frozen, poison, 1e6)
    with pytest.raises(Exception, match="dismissed"):
        frozen.wait(soon("a refusal"))
    assert site.server.facts().version == 2


def test_a_stopped_server_is_waited_for(stack: ExitStack) -> None:
    site = Site(stack, workers=1, consistency="async")
    client, parameters, gradients = site.client()
    pid = site.server.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    begin(client, gradients, 1.0)
    client.attend()
    os.kill(pid, signal.SIGCONT)
    client.wait(soon("the server that was stopped"))
    assert parameters.eq(-1).all()


def connect_raw(address: str) -> socket.socket:
    if address.startswith("ipc://@"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect("\0" + address.removeprefix("ipc://@"))
        return connection
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), LIMIT_S)


class Intruder:
    """Connects to a server without belonging to the run."""

    def __init__(self, stack: ExitStack, site: Site, bulk: str) -> None:
        self.stack = stack
        self.door = site.server.address.door
        self.server_key = site.server.address.public_key
        self.bulk = bulk
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(self.context.term)

    def dealer(self) -> zmq.Socket[bytes]:
        dealer = self.stack.enter_context(self.context.socket(zmq.DEALER))
        dealer.linger = 0
        return dealer

    def pushes(self, dealer: zmq.Socket[bytes]) -> None:
        """What a worker would send, to ruin the parameters."""
        poison = torch.full((LAYOUT.segments[0].size,), 1e6)
        payload = poison.numpy().tobytes()
        for op in (BulkOp.ENTER, BulkOp.PUSH, BulkOp.LOAD, BulkOp.LEAVE):
            header = Header(
                op=op, worker=0, incarnation=1, clock=1, kind=Kind.F32, num_bytes=len(payload)
            )
            try:
                dealer.send_multipart([header.pack(), payload], flags=zmq.NOBLOCK)
            except zmq.Again:
                # Refused already: ZeroMQ then drops the connection for good, and a send that
                # waits for another one never returns.
                return

    def raw(self, address: str, data: bytes) -> None:
        with connect_raw(address) as connection:
            connection.sendall(data)
            connection.settimeout(LIMIT_S)
            # Wait until the server has seen it: it greets, and hangs up on nonsense.
            connection.recv(64)


# A ZMTP 3.0 greeting for the PLAIN or CURVE mechanism, as the protocol writes it.
def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def no_key(intruder: Intruder) -> None:
    for address in (intruder.door, intruder.bulk):
        dealer = intruder.dealer()
        dealer.connect(address)
        intruder.pushes(dealer)
        dealer.poll(200)


def wrong_key(intruder: Intruder) -> None:
    for address in (intruder.door, intruder.bulk):
        dealer = intruder.dealer()
        secure_client(dealer, KeyPair.make(), intruder.server_key)
        dealer.connect(address)
        intruder.pushes(dealer)
        dealer.poll(200)


def wrong_token(intruder: Intruder) -> None:
    dealer = intruder.dealer()
    present_token(dealer, "0" * 64)
    dealer.connect(intruder.bulk)
    intruder.pushes(dealer)
    dealer.poll(200)


def garbage(intruder: Intruder) -> None:
    noise = bytes(torch.randint(0, 256, (100_000,), dtype=torch.uint8).numpy())
    for address in (intruder.door, intruder.bulk):
        for data in (noise, b"GET / HTTP/1.1\r\n\r\n", greeting(b"NULL") + noise):
            try:
                intruder.raw(address, data)
            except (ConnectionError, TimeoutError):
                continue


def oversized(intruder: Intruder) -> None:
    # A frame that announces 2**62 bytes, before and after a greeting that looks right.
    huge = b"\x02" + (2**62).to_bytes(8, "big") + bytes(4096)
    for address in (intruder.door, intruder.bulk):
        for mechanism in (b"PLAIN", b"CURVE", b"NULL"):
            try:
                intruder.raw(address, greeting(mechanism) + huge)
            except (ConnectionError, TimeoutError):
                continue


def bulk_address(stack: ExitStack, site: Site) -> str:
    """Where the bulk socket is: told only to those who hold a key."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack.callback(context.term)
    door = stack.enter_context(context.socket(zmq.DEALER))
    door.linger = 0
    secure_client(door, site.keys[0], site.server.address.public_key)
    door.connect(site.server.address.door)
    door.send(msgspec.msgpack.encode(ConnectRequest(generation=0, digest=digest_of(LAYOUT))))
    assert door.poll(LIMIT_S * 1000)
    return msgspec.msgpack.decode(door.recv(), type=ConnectAccepted).bulk


@pytest.mark.parametrize("encrypt", [False, True])
def test_strangers_change_nothing_and_the_run_goes_on(stack: ExitStack, encrypt: bool) -> None:
    site = Site(stack, workers=1, encrypt=encrypt, consistency="async")
    intruder = Intruder(stack, site, bulk_address(stack, site))
    assert intruder.bulk.startswith("tcp://" if encrypt else "ipc://")
    client, parameters, gradients = site.client()
    attacks = [no_key, wrong_key, wrong_token, garbage, oversized] * 2
    for step, attack in enumerate(attacks, start=1):
        attack(intruder)
        gradients.fill_(1.0)
        exchange(client)
        assert parameters.eq(-step).all(), attack.__name__
    facts = site.server.facts()
    assert (facts.version, facts.pushes) == (len(attacks), len(attacks))
    assert set(facts.received_bytes) == {"worker-0"}
    assert client.facts().reconnects == 0


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_worker_that_speaks_nonsense_hurts_only_itself(stack: ExitStack, encrypt: bool) -> None:
    site = Site(stack, workers=2, encrypt=encrypt, consistency="async")
    worker, parameters, gradients = site.client(0)
    mad, _, _ = site.client(1)
    link = mad._connections[0]
    segment = LAYOUT.segments[0]
    right = {"incarnation": 1, "clock": 1, "kind": Kind.F32}
    nonsense = [
        (Header(op=BulkOp.PUSH, worker=1, **right, num_bytes=8), bytes(8)),
        (
            Header(op=BulkOp.PUSH, worker=0, **right, num_bytes=4 * segment.size),
            bytes(4 * segment.size),
        ),
        (Header(op=BulkOp.PUSH, worker=1, **right, segment=999, num_bytes=4), bytes(4)),
        (
            Header(op=BulkOp.LOAD, worker=1, **right, num_bytes=4 * segment.size),
            bytes(4 * segment.size),
        ),
        (Header(op=BulkOp.PARAMS, worker=1, **right), None),
        (Header(op=BulkOp.PUSH, worker=1, **right, num_bytes=12), bytes(8)),
    ]
    for header, payload in nonsense:
        assert link.send(header, None if payload is None else memoryview(payload))
    gradients.fill_(1.0)
    exchange(worker)
    assert parameters.eq(-1).all()
    facts = site.server.facts()
    assert facts.pushes == 1
    assert facts.refused == len(nonsense)
    # Longer than any frame may be: ZeroMQ cuts the connection.
    long = memoryview(bytes(4 * SIZE + (1 << 20)))
    link.send(Header(op=BulkOp.PUSH, worker=1, **right, num_bytes=long.nbytes), long)
    exchange(worker)
    assert parameters.eq(-2).all()
