"""Workers and servers over real sockets: every consistency against a reference, breaks, zombies."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from phalanx.consistency.shards import ShardLayout
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.errors import PeerError
from phalanx.paramserver.client import Client
from phalanx.paramserver.client_state import Detached
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.reader import Reader
from phalanx.paramserver.server import Server
from phalanx.spec.optimize import AdamSpec, OptimizerSpec, SgdSpec
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

SIZE = 50_000


class Cluster:
    """Servers in threads, and what workers need to reach them."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        workers: int = 1,
        servers: int = 1,
        size: int = SIZE,
        optimizer: OptimizerSpec | None = None,
        encrypt: bool = False,
        **consistency: object,
    ) -> None:
        self.stack = stack
        self.layout: ShardLayout = small_layout(size, servers=servers)
        self.keys = [KeyPair.make() for _ in range(workers)]
        self.shards = [
            make_shard(
                self.layout,
                rule=consistency_rule(**consistency),
                workers=range(workers),
                server=index,
                optimizer=optimizer,
            )
            for index in range(servers)
        ]
        self.servers: list[Server] = []
        for index, shard in enumerate(self.shards):
            settings = settings_for(self.layout, index, encrypt=encrypt)
            server = Server(shard, keys=KeyPair.make(), settings=settings)
            self.servers.append(stack.enter_context(serving(server)))
            for rank, keys in enumerate(self.keys):
                self.admit(server, keys, rank)

    def admit(self, server: Server, keys: KeyPair, rank: int, incarnation: int = 1) -> None:
        peer = ClientIdentity("worker", rank, incarnation)
        server.call(lambda: server.admit(keys.public, peer)).result(LIMIT_S)

    def client(
        self, worker: int = 0, **fields: object
    ) -> tuple[Client, torch.Tensor, torch.Tensor]:
        addresses = [server.address for server in self.servers]
        keys = self.keys[worker]
        client, parameters, gradients = client_for(
            self.layout, addresses, keys, worker=worker, **fields
        )
        self.stack.enter_context(client)
        client.connect(soon("the servers"))
        return client, parameters, gradients

    def parameters(self) -> torch.Tensor:
        return torch.cat([shard.updater.parameters for shard in self.shards])


def target(size: int = SIZE) -> torch.Tensor:
    return torch.linspace(-1, 1, size)


def descend(client: Client, parameters: torch.Tensor, gradients: torch.Tensor, steps: int) -> None:
    """Minimise the distance to the target, one exchange per step."""
    for _ in range(steps):
        torch.sub(parameters, target(len(parameters)), out=gradients)
        exchange(client)


def together(bodies: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body) for body in bodies]:
            future.result(LIMIT_S)


CONSISTENCIES: list[dict[str, object]] = [
    {"consistency": "async"},
    {"consistency": "bsp"},
    {"consistency": "bsp", "backup": 1},
    {"consistency": "ssp", "staleness": 0},
    {"consistency": "ssp", "staleness": 2},
    {"consistency": "dssp", "staleness_range": [1, 4]},
    {"consistency": "k_sync", "k": 2},
    {"consistency": "k_async", "k": 2},
]


def name_of(fields: dict[str, object]) -> str:
    return "-".join(str(value) for value in fields.values())


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("consistency", CONSISTENCIES, ids=name_of)
def test_three_workers_reach_the_target(servers: int, consistency: dict[str, object]) -> None:
    with ExitStack() as stack:
        cluster = Cluster(
            stack, workers=3, servers=servers, optimizer=SgdSpec(lr=0.2), **consistency
        )
        members = [cluster.client(worker) for worker in range(3)]

        def work(member: tuple[Client, torch.Tensor, torch.Tensor]) -> None:
            descend(*member, steps=60)
            member[0].leave(soon("the farewell"))

        together([lambda member=member: work(member) for member in members])  # type: ignore[misc]
        assert torch.allclose(cluster.parameters(), target(), atol=0.05)
        for shard in cluster.shards:
            policy = shard.policy
            assert policy.num_pushes == 180
            assert policy.num_applied + policy.num_dropped + policy.num_gathered == 180
            counted = shard.staleness.facts().values()
            assert sum(facts.count for facts in counted) == policy.num_applied


# Consistencies that drop nothing, and how many gradients one update is the mean of.
EXACT: list[tuple[dict[str, object], int]] = [
    ({"consistency": "async"}, 1),
    ({"consistency": "bsp"}, 3),
    ({"consistency": "ssp", "staleness": 0}, 3),
    ({"consistency": "ssp", "staleness": 2}, 1),
    ({"consistency": "dssp", "staleness_range": [1, 4]}, 1),
    ({"consistency": "k_async", "k": 2}, 2),
]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(("consistency", "gathered"), EXACT, ids=lambda one: str(one))
def test_every_push_moves_the_parameters_once(
    servers: int, consistency: dict[str, object], gathered: int
) -> None:
    """Each worker pushes ones in a third of its own, so that the parameters count its pushes.

    They are an independent witness: they know nothing of what the policy counted.
    """
    workers, steps, lr = 3, 20, 0.5
    third = SIZE // workers
    with ExitStack() as stack:
        cluster = Cluster(
            stack, workers=workers, servers=servers, optimizer=SgdSpec(lr=lr), **consistency
        )
        members = [cluster.client(worker) for worker in range(workers)]

        def work(rank: int) -> None:
            client, _, gradients = members[rank]
            for _ in range(steps):
                gradients.zero_()
                gradients[rank * third : (rank + 1) * third] = 1.0
                exchange(client)
            client.leave(soon("the farewell"))

        together([lambda rank=rank: work(rank) for rank in range(workers)])  # type: ignore[misc]
        moved = -cluster.parameters()
    for rank in range(workers):
        own = moved[rank * third : (rank + 1) * third]
        assert torch.allclose(own, torch.full_like(own, steps * lr / gathered), atol=1e-4), rank


@pytest.mark.parametrize("servers", [1, 3])
def test_bsp_is_the_step_of_one_process_with_the_whole_batch(servers: int) -> None:
    spec = AdamSpec(lr=0.05)
    reference = torch.zeros(SIZE)
    optimizer = FlatOptimizer(spec, reference)
    shares = [0.5, 0.3, 0.2]

    def gradient(step: int, worker: int) -> torch.Tensor:
        return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * step + worker))

    with ExitStack() as stack:
        cluster = Cluster(stack, workers=3, servers=servers, optimizer=spec, consistency="bsp")
        members = [cluster.client(worker) for worker in range(3)]

        def work(worker: int) -> None:
            client, parameters, gradients = members[worker]
            for step in range(10):
                assert client.versions == dict.fromkeys(range(servers), step)
                gradients.copy_(gradient(step, worker) * shares[worker])
                exchange(client, num_samples=10, weight=shares[worker])
            assert torch.equal(parameters, cluster.parameters())

        together([lambda worker=worker: work(worker) for worker in range(3)])  # type: ignore[misc]
        for step in range(10):
            whole = sum((gradient(step, w) * shares[w] for w in range(3)), torch.zeros(SIZE))
            optimizer.step(whole, 0.05)
        assert torch.allclose(cluster.parameters(), reference, atol=1e-5)


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("compression", ["none", "bf16", "int8"])
@pytest.mark.parametrize("overlap", [False, True])
def test_one_worker_reaches_the_target_however_gradients_travel(
    encrypt: bool, compression: str, overlap: bool
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, encrypt=encrypt, optimizer=SgdSpec(lr=0.2))
        client, parameters, gradients = cluster.client(compression=compression, overlap=overlap)
        for _ in range(80):
            torch.sub(parameters, target(), out=gradients)
            client.wait(soon("the push before"))
            client.begin(num_samples=1)
            client.finish()
            if not overlap:
                client.wait(soon("this push"))
        client.wait(soon("the last push"))
        assert torch.allclose(cluster.parameters(), target(), atol=0.02)
        assert torch.equal(parameters, cluster.parameters())


def test_segments_leave_as_they_become_ready() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, servers=2, optimizer=SgdSpec(lr=1.0))
        client, parameters, gradients = cluster.client()
        gradients.fill_(1.0)
        client.begin(num_samples=1)
        third = SIZE // 3
        for start, stop in [(2 * third, SIZE), (third, 2 * third), (0, third)]:
            client.ready(start, stop)
        client.wait(soon("the answers"))
        assert parameters.eq(-1).all()


def test_a_worker_without_samples_does_not_hold_up_the_round() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=2, optimizer=SgdSpec(lr=1.0), consistency="bsp")
        (busy, parameters, gradients), (idle, others, _) = (cluster.client(w) for w in range(2))
        gradients.fill_(1.0)
        busy.begin(num_samples=4)
        busy.finish()
        idle.skip()
        busy.wait(soon("the round"))
        idle.wait(soon("the round"))
        assert parameters.eq(-1).all()
        assert others.eq(-1).all()


def test_a_reader_sees_whole_versions_and_nobody_waits_for_it() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=2, servers=2, optimizer=SgdSpec(lr=1.0), consistency="bsp")
        keys = KeyPair.make()
        for server in cluster.servers:
            server.call(
                lambda server=server: server.admit(keys.public, ClientIdentity("reader", 0, 1))  # type: ignore[misc]
            ).result(LIMIT_S)
        members = [cluster.client(worker) for worker in range(2)]
        addresses = [server.address for server in cluster.servers]
        reader = stack.enter_context(Reader(cluster.layout, addresses, keys=keys))
        seen = torch.empty(SIZE)

        def work(member: tuple[Client, torch.Tensor, torch.Tensor]) -> None:
            client, _, gradients = member
            gradients.fill_(0.5)
            for _ in range(50):
                exchange(client, weight=0.5)

        def read() -> None:
            for _ in range(20):
                reading = reader.pull(seen, soon("a reading"))
                for server, version in enumerate(reading.versions):
                    start, stop = cluster.layout.bounds(server)
                    assert seen[start:stop].eq(-version).all()

        together([lambda: work(members[0]), lambda: work(members[1]), read])
        reader.pull(seen, soon("the last reading"))
        assert seen.eq(-50).all()


def test_a_worker_may_pause_and_come_back() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=2, optimizer=SgdSpec(lr=1.0), consistency="bsp")
        (first, parameters, gradients), (second, others, other_gradients) = (
            cluster.client(w) for w in range(2)
        )
        second.leave(soon("the farewell"))
        gradients.fill_(1.0)
        exchange(first)
        assert parameters.eq(-1).all()

        def come_back() -> None:
            second.connect(soon("the return"))
            assert others.eq(-second.versions[0]).all()
            other_gradients.fill_(0.5)
            exchange(second, weight=0.5)

        def go_on() -> None:
            while cluster.shards[0].policy.num_workers < 2:
                gradients.fill_(1.0)
                exchange(first)
            # Half the weight of a mean of 1: every update moves by 1, with the other or without.
            for _ in range(3):
                gradients.fill_(0.5)
                exchange(first, weight=0.5)

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(come_back), pool.submit(go_on)]
            futures[0].result(LIMIT_S)
            second.leave(soon("the farewell"))
            futures[1].result(LIMIT_S)


def test_a_worker_that_left_reads_without_being_waited_for() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=2, servers=2, optimizer=SgdSpec(lr=1.0), consistency="bsp")
        (first, _, gradients), (second, others, _) = (cluster.client(w) for w in range(2))
        second.leave(soon("the farewell"))
        for _ in range(2):
            gradients.fill_(1.0)
            exchange(first)
        second.pull(soon("the last state"))
        assert others.eq(-2).all()
        assert [shard.policy.num_workers for shard in cluster.shards] == [1, 1]
        assert second.versions == {0: 2, 1: 2}
        assert second.state == Detached()


def test_a_dismissed_worker_is_told_and_changes_nothing() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=2, optimizer=SgdSpec(lr=1.0), consistency="bsp")
        (zombie, _, poison), (worker, parameters, gradients) = (cluster.client(w) for w in range(2))
        server = cluster.servers[0]
        gradients.fill_(1.0)
        worker.begin(num_samples=1)
        worker.finish()
        server.call(lambda: server.dismiss("worker", 0)).result(LIMIT_S)
        worker.wait(soon("the round that nobody else is in"))
        assert parameters.eq(-1).all()
        poison.fill_(1e6)
        with pytest.raises(PeerError, match="dismissed"):
            exchange(zombie)
        assert cluster.parameters().eq(-1).all()
        assert server.call(server.facts).result(LIMIT_S).refused > 0


def test_an_older_incarnation_is_fenced_off_by_its_successor() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, optimizer=SgdSpec(lr=1.0))
        zombie, _, poison = cluster.client()
        cluster.keys[0] = KeyPair.make()
        cluster.admit(cluster.servers[0], cluster.keys[0], 0, incarnation=2)
        successor, parameters, gradients = cluster.client(incarnation=2)
        poison.fill_(1e6)
        with pytest.raises(PeerError):
            exchange(zombie)
        gradients.fill_(1.0)
        exchange(successor)
        assert parameters.eq(-1).all()


def test_another_generation_is_refused_at_the_door() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        with pytest.raises(PeerError, match="generation"):
            cluster.client(generation=7)


def test_another_layout_is_refused_at_the_door() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        cluster.layout = small_layout(SIZE + 1)
        with pytest.raises(PeerError, match="cut in another way"):
            cluster.client()


def test_a_worker_knows_how_much_of_its_wait_was_the_rules_doing() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=2, servers=2, consistency="bsp")
        (early, _, _), (late, _, _) = cluster.client(0), cluster.client(1)
        early.begin(num_samples=1, weight=0.5)
        early.finish()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(early.wait, soon("the round"))
            begun = time.perf_counter()
            wait_until(
                lambda: all(
                    server.call(server.facts).result(LIMIT_S).gathered for server in cluster.servers
                ),
                "the push of the early worker",
            )
            here = time.perf_counter()
            wait_until(lambda: time.perf_counter() > here + 0.3, "some time to pass")
            sent = time.perf_counter()
            exchange(late, weight=0.5)
            waiting.result(LIMIT_S)
            ended = time.perf_counter()
        # At least while the push was seen to lie there alone (its last segments may have come a
        # little later than its first); at most as long as anything took.
        assert 0.8 * (sent - here) <= early.held_s <= ended - begun
        # Nobody held the late one back, it only communicated.
        assert late.held_s < early.held_s / 2


def test_a_worker_that_brings_the_parameters_along_is_sent_none() -> None:
    """Only what the servers begin with counts: not a later state, and not what another claims."""
    with ExitStack() as stack:
        cluster = Cluster(stack, workers=3, servers=2)
        bringing, parameters, gradients = cluster.client(0, holds=True)
        assert parameters.isnan().all()  # left as it was
        received = sum(bringing.facts().received_bytes.values())
        assert received < SIZE
        empty, others, _ = cluster.client(1)
        assert torch.equal(others, cluster.parameters())
        assert sum(empty.facts().received_bytes.values()) > 4 * SIZE
        gradients.fill_(1.0)
        exchange(bringing)
        assert torch.equal(parameters, cluster.parameters())
        # The servers have moved on: what is brought along now is out of date.
        _, late, _ = cluster.client(2, holds=True)
        assert torch.equal(late, cluster.parameters())
