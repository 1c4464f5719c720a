"""Shards, servers and clients for tests: in memory, in threads, or as real processes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec
import torch

from phalanx.consistency.policy import ConsistencyPolicy
from phalanx.consistency.rule import ConsistencyRule, rule_for
from phalanx.consistency.shards import ShardLayout, plan_shards
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.paramserver.client import Client
from phalanx.paramserver.client_settings import ClientSettings
from phalanx.paramserver.connection import max_frame_bytes
from phalanx.paramserver.handshake import ClientIdentity, digest_of
from phalanx.paramserver.server import Server, ServerSettings
from phalanx.paramserver.shard import Shard
from phalanx.paramserver.update import SliceUpdater, StepSize
from phalanx.spec.optimize import OptimizerField, OptimizerSpec, SgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair
from phalanx.wire.parameter_server import ServerAddress
from phalanx.wire.server_stats import ServerStats

LIMIT_S = 30.0


def soon(activity: str = "a test") -> Deadline:
    return Deadline.after(LIMIT_S, activity)


def consistency_rule(**fields: object) -> ConsistencyRule:
    return rule_for(ParameterServerSpec.model_validate(fields))


def small_layout(
    size: int, *, servers: int = 1, segments: int = 3, cut_at: tuple[int, ...] | None = None
) -> ShardLayout:
    """A layout with several segments per server, however small the model."""
    per_segment = -(-size // (servers * segments))
    return plan_shards(
        size,
        num_servers=servers,
        min_shard_bytes=4,
        segment_bytes=4 * max(1, per_segment),
        cut_at=cut_at,
    )


def make_shard(
    layout: ShardLayout,
    *,
    rule: ConsistencyRule,
    workers: Iterable[int],
    server: int = 0,
    optimizer: OptimizerSpec | None = None,
    start: torch.Tensor | None = None,
    scaling: str = "none",
    num_parts: int = 1,
) -> Shard:
    spec = optimizer or SgdSpec(lr=0.1)
    begin, end = layout.bounds(server)
    parameters = torch.zeros(end - begin) if start is None else start[begin:end].clone()
    segments = layout.of_server(server)
    return Shard(
        segments,
        updater=SliceUpdater(OptimizerFactory(spec), parameters, segments),
        policy=ConsistencyPolicy(rule, workers),
        step_size=StepSize(lambda _: spec.lr, scaling=scaling, rule=rule),  # type: ignore[arg-type]
        num_parts=num_parts,
    )


def settings_for(layout: ShardLayout, index: int = 0, **fields: object) -> ServerSettings:
    return ServerSettings(
        index=index,
        digest=digest_of(layout),
        max_frame_bytes=max_frame_bytes(layout),
        **fields,  # type: ignore[arg-type]
    )


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """A server in a thread of its own."""
    with server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(LIMIT_S)


def client_for(
    layout: ShardLayout,
    servers: list[ServerAddress],
    keys: KeyPair,
    *,
    worker: int = 0,
    **fields: object,
) -> tuple[Client, torch.Tensor, torch.Tensor]:
    """A client with buffers of its own: client, parameters, gradients."""
    parameters = torch.full((layout.num_parameters,), torch.nan)
    gradients = torch.zeros(layout.num_parameters)
    client = Client(
        layout,
        parameters=parameters,
        gradients=gradients,
        servers=servers,
        settings=ClientSettings(worker=worker, keys=keys, **fields),  # type: ignore[arg-type]
    )
    return client, parameters, gradients


def exchange(client: Client, *, num_samples: int = 1, weight: float = 1.0, ticket: int = 0) -> None:
    client.begin(num_samples=num_samples, weight=weight, ticket=ticket)
    client.finish()
    client.wait(soon("an exchange"))


class Setup(msgspec.Struct):
    """What a server process is started with."""

    size: int
    workers: int
    servers: int
    index: int
    consistency: dict[str, object]
    keys: KeyPair
    peers: list[tuple[str, int, int]]
    optimizer: dict[str, object]
    encrypt: bool = False
    restoring: bool = False
    incarnation: int = 1


def _serve(connection: Connection, data: bytes) -> None:
    """The body of a server process."""
    from pydantic import TypeAdapter

    torch.set_num_threads(1)
    setup = msgspec.msgpack.decode(data, type=Setup)
    layout = small_layout(setup.size, servers=setup.servers)
    shard = make_shard(
        layout,
        rule=consistency_rule(**setup.consistency),
        workers=range(setup.workers),
        server=setup.index,
        optimizer=TypeAdapter(OptimizerField).validate_python(setup.optimizer),
    )
    settings = settings_for(
        layout,
        setup.index,
        encrypt=setup.encrypt,
        restoring=setup.restoring,
        incarnation=setup.incarnation,
    )
    with Server(shard, keys=setup.keys, settings=settings) as server:
        for key, rank, incarnation in setup.peers:
            server.admit(key, ClientIdentity("worker", rank, incarnation))
        connection.send_bytes(msgspec.msgpack.encode(server.address))

        def obey() -> None:
            while (order := connection.recv_bytes().decode()) != "stop":
                if order == "facts":
                    connection.send_bytes(
                        msgspec.msgpack.encode(server.call(server.facts).result(LIMIT_S))
                    )
                elif order.startswith("expect"):
                    number, rank = map(int, order.split()[1:])
                    donor = ClientIdentity("worker", rank, 1)
                    server.call(partial(server.expect, number, donor)).result(LIMIT_S)
                else:
                    rank = int(order.rsplit("-", 1)[1])
                    server.call(partial(server.dismiss, "worker", rank)).result(LIMIT_S)
            server.stop()

        thread = threading.Thread(target=obey)
        thread.start()
        server.serve()
        thread.join(LIMIT_S)


class ServerProcess:
    """A server in a real process."""

    def __init__(self, setup: Setup) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, msgspec.msgpack.encode(setup))
        )
        self.process.start()
        theirs.close()
        self.address = msgspec.msgpack.decode(self._receive(), type=ServerAddress)

    def facts(self) -> ServerStats:
        self._connection.send_bytes(b"facts")
        return msgspec.msgpack.decode(self._receive(), type=ServerStats)

    def expect(self, donor: int, number: int = 1) -> None:
        """What the coordinator says before it asks a worker for its copy."""
        self._connection.send_bytes(f"expect {number} {donor}".encode())

    def dismiss(self, name: str) -> None:
        self._connection.send_bytes(name.encode())

    def stop(self) -> None:
        if self.process.is_alive():
            self._connection.send_bytes(b"stop")
        self.process.join(LIMIT_S)
        self._connection.close()
        self.process.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(LIMIT_S)

    def _receive(self) -> bytes:
        if not self._connection.poll(LIMIT_S):
            raise TimeoutError("the server process says nothing")
        return self._connection.recv_bytes()


@contextmanager
def server_processes(setups: Iterable[Setup]) -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        servers = []
        for setup in setups:
            servers.append(ServerProcess(setup))
            stack.callback(servers[-1].stop)
        yield servers
