"""The serving thread: roles at its door, a slice from one donor, and what its failure does."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

from phalanx.consistency.rule import ConsistencyRule
from phalanx.paramserver.client import Client
from phalanx.paramserver.connection_table import ClientMessage
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.server import Server
from phalanx.wire.bulk import BulkOp, Header, Kind
from phalanx.wire.keys import KeyPair
from support.paramserver import (
    LIMIT_S,
    client_for,
    consistency_rule,
    exchange,
    make_shard,
    serving,
    settings_for,
    small_layout,
    soon,
)
from support.waiting import wait_until

SIZE = 600
LAYOUT = small_layout(SIZE, servers=2)
ASYNC = consistency_rule(consistency="async")
WORKER = ClientIdentity("worker", 0, 1)
KEYS = KeyPair.make()


def make_server(
    index: int = 0,
    *,
    restoring: bool = False,
    incarnation: int = 1,
    rule: ConsistencyRule = ASYNC,
    workers: tuple[int, ...] = (),
) -> Server:
    shard = make_shard(LAYOUT, rule=rule, workers=workers, server=index)
    settings = settings_for(LAYOUT, index, restoring=restoring, incarnation=incarnation)
    return Server(shard, keys=KeyPair.make(), settings=settings)


def load(server: Server, client: ClientIdentity, *, number: int = 1, version: int = 3) -> None:
    """A client sends all segments of a copy."""
    for segment in LAYOUT.of_server(0):
        values = torch.full((segment.size,), 666.0)
        header = Header(
            op=BulkOp.LOAD,
            worker=client.rank,
            incarnation=client.incarnation,
            clock=number,
            segment=segment.index,
            readver=version,
            kind=Kind.F32,
            num_bytes=4 * segment.size,
        )
        payload = values.view(torch.uint8).numpy().data
        server._take(ClientMessage(client, header, payload))


@pytest.mark.parametrize(
    "client", [ClientIdentity("reader", 0, 1), ClientIdentity("worker", 1, 1)], ids=str
)
def test_nobody_but_the_donor_writes_parameters(client: ClientIdentity) -> None:
    with make_server(restoring=True) as server:
        server.expect(1, WORKER)
        load(server, client)
        assert server.is_restoring
        assert server.facts().refused == len(LAYOUT.of_server(0))
        load(server, WORKER)
        assert (server.is_restoring, server.restore.version) == (False, 3)


def test_a_server_that_lost_nothing_takes_no_copy() -> None:
    with make_server() as server:
        server.expect(1, WORKER)
        load(server, WORKER)
        assert server.facts().refused == len(LAYOUT.of_server(0))


def test_tickets_that_cannot_be_read_are_refused() -> None:
    with make_server(restoring=True) as server:
        server.expect(1, WORKER)
        segment = LAYOUT.of_server(0)[0]
        header = Header(
            op=BulkOp.LOAD,
            worker=0,
            incarnation=1,
            clock=1,
            segment=segment.index,
            kind=Kind.F32,
            num_bytes=4 * segment.size,
        )
        payload = memoryview(bytearray(4 * segment.size))
        server._take(ClientMessage(WORKER, header, payload, b"?"))
        assert server.facts().refused == 1
        assert server.restore.num_loaded == 0


def attend_until_restored(client: Client, servers: list[Server]) -> None:
    def restored() -> bool:
        client.attend()
        return not any(s.call(lambda s=s: s.is_restoring).result(LIMIT_S) for s in servers)

    wait_until(restored, "the servers to be whole", limit_s=LIMIT_S)


def test_copies_for_two_servers_arrive_though_their_connections_break() -> None:
    with ExitStack() as stack:

        def start(index: int, **fields: object) -> Server:
            server = make_server(index, **fields)  # type: ignore[arg-type]
            stack.enter_context(serving(server))
            server.call(lambda: server.admit(KEYS.public, WORKER)).result(LIMIT_S)
            return server

        old = [start(index) for index in range(2)]
        client, parameters, gradients = client_for(
            LAYOUT, [server.address for server in old], KEYS, whole=True
        )
        stack.enter_context(client)
        client.connect(soon("the servers"))
        gradients.fill_(1.0)
        exchange(client, ticket=5)
        for server in old:
            server.stop()
        new = [start(index, restoring=True, incarnation=2) for index in range(2)]
        for index, server in enumerate(new):
            client.relocate(server.address)
            client.donate(index, number=1 + index)
        for _ in range(3):
            # Cut at a moment when anything between nothing and all has been handed over.
            client.attend()
            for index in range(2):
                client._connections[index].renew()
        for index, server in enumerate(new):
            server.call(lambda s=server, i=index: s.expect(1 + i, WORKER)).result(LIMIT_S)
        attend_until_restored(client, new)
        held = [s.call(s._shard.ledger.held).result(LIMIT_S) for s in new]
        assert [list(one) for one in held] == [[5], [5]], "each knows what its parameters contain"
        # The same batch again, as if its worker had died before it had reported it.
        before = parameters.clone()
        exchange(client, ticket=5)
        assert torch.equal(parameters, before)


def test_a_worker_that_awaits_nothing_of_a_restored_server_enters_there_all_the_same() -> None:
    """Others are held back there until it is back, and it may wait for one of them elsewhere."""
    held_back = consistency_rule(consistency="ssp", staleness=1)
    with ExitStack() as stack:

        def start(index: int, **fields: object) -> Server:
            server = make_server(index, rule=held_back, **fields)  # type: ignore[arg-type]
            stack.enter_context(serving(server))
            server.call(lambda: server.admit(KEYS.public, WORKER)).result(LIMIT_S)
            return server

        # Worker 1 does not come: the first server holds back the second push of worker 0.
        old = [start(0, workers=(0, 1)), start(1)]
        client, _, gradients = client_for(
            LAYOUT, [server.address for server in old], KEYS, whole=True
        )
        stack.enter_context(client)
        client.connect(soon("the servers"))
        gradients.fill_(1.0)
        exchange(client, ticket=1)
        client.begin(num_samples=1, ticket=2)
        client.finish()

        def answered() -> bool:
            client.attend()
            return bool(client.acknowledged(1))

        wait_until(answered, "the second server to answer", limit_s=LIMIT_S)
        assert not client.acknowledged(0)
        old[1].stop()
        new = start(1, workers=(0,), restoring=True, incarnation=2)
        client.relocate(new.address)

        def asked() -> bool:
            client.attend()
            return new.call(lambda: new._load_stats.num_messages).result(LIMIT_S) > 0

        wait_until(asked, "the worker to come to a server that is not whole", limit_s=LIMIT_S)
        new.call(lambda: new.expect(1, WORKER)).result(LIMIT_S)
        client.donate(1, number=1)
        attend_until_restored(client, [new])

        def entered() -> bool:
            client.attend()
            return new.call(lambda: new._has_entered(WORKER)).result(LIMIT_S)

        wait_until(entered, "the worker to enter", limit_s=LIMIT_S)
        assert not client.acknowledged(0), "all the while it waits for the first server"


class Impostor:
    """Listens where a server was, and takes whoever comes."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, kind: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        if kind == "curve":
            keys = KeyPair.make()
            self.socket.curve_server = True
            self.socket.curve_publickey = keys.public.encode()
            self.socket.curve_secretkey = keys.secret.encode()
        elif kind == "plain":
            self.socket.plain_server = True
        self._monitor = self.socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        self.socket.bind(address)
        self.num_accepted = self.num_trusted = 0

    def look(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self.num_accepted += event == zmq.EVENT_ACCEPTED
            self.num_trusted += event == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close()


@pytest.mark.parametrize("kind", ["curve", "plain", "null"])
@pytest.mark.parametrize("encrypt", [False, True], ids=["plain bulk", "encrypted bulk"])
def test_an_impostor_at_a_dead_server_s_ports_is_never_spoken_to(kind: str, encrypt: bool) -> None:
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        shard = make_shard(LAYOUT, rule=ASYNC, workers=(), server=0)
        other = stack.enter_context(serving(make_server(1)))
        with serving(
            Server(shard, keys=KeyPair.make(), settings=settings_for(LAYOUT, encrypt=encrypt))
        ) as server:
            for one in (server, other):
                one.call(lambda one=one: one.admit(KEYS.public, WORKER)).result(LIMIT_S)
            sockets = server._sockets
            doors = {sockets.handshake_address, sockets.bulk_address, sockets.local_address}
            servers = [server.address, other.address]
            client, parameters, gradients = client_for(LAYOUT, servers, KEYS, whole=True)
            stack.enter_context(client)
            client.connect(soon("the servers"))
            gradients.fill_(1.0)
            exchange(client)
        impostors = {door: Impostor(context, door, kind) for door in doors}
        for one in impostors.values():
            stack.callback(one.close)
        before = parameters.clone()
        client.begin(num_samples=1)
        client.finish()

        def has_tried() -> bool:
            client.attend()
            for one in impostors.values():
                one.look()
            return impostors[server.address.door].num_accepted >= 3

        wait_until(has_tried, "the client to try its server", limit_s=LIMIT_S)
        for door, one in impostors.items():
            assert not one.socket.poll(0), f"something was sent to {door}"
            assert one.num_trusted == 0
            assert one.num_accepted == 0 or door == server.address.door, "without a handshake"
        assert not client._connections[0].accepted
        first, end = LAYOUT.bounds(0)
        assert torch.equal(parameters[first:end], before[first:end])


def test_an_error_in_the_serving_thread_reaches_whoever_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with make_server() as server:
        failed: list[BaseException] = []

        def serve() -> None:
            try:
                server.serve()
            except MemoryError as error:
                failed.append(error)

        def fail() -> None:
            raise MemoryError("no room for a copy")

        waiting = server.call(lambda: None)
        monkeypatch.setattr(server._calls, "run", fail)
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join(LIMIT_S)
        for call in (waiting, server.call(lambda: None)):
            with pytest.raises(MemoryError, match="no room"):
                call.result(LIMIT_S)
        assert len(failed) == 1
