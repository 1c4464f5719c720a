"""What the parameter server costs on loopback: push, apply and pull, against what the machine can.

One exchange is a whole gradient pushed, applied with plain SGD and answered with all parameters, in
frames of up to 4 MB between processes with one thread each. GB/s counts the bytes of both
directions. Three limits are measured in the same run, round by round in turn, so that noise hits
all alike: copying the same bytes in memory, echoing them over a bare TCP connection with both
directions under way at once, and the same with every chunk added to a buffer on the way (what
"apply" needs at least). Plain exchanges use a Unix socket where both ends are on one machine, so
they may pass what TCP can. Medians over rounds count, and the best round, because other programs
can only slow a round down. Updates per second against TensorFlow are measured by
`async_updates.py`, which this calls when told which interpreter has TensorFlow.

    python benchmarks/paramserver.py [--rounds 9] [--growth] [--tensorflow-python PATH] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from phalanx.consistency.policy import ConsistencyPolicy
from phalanx.consistency.rule import rule_for
from phalanx.consistency.shards import MAX_SEGMENT_BYTES, plan_shards
from phalanx.engine.optimizer_factory import OptimizerFactory
from phalanx.paramserver.client import Client
from phalanx.paramserver.client_settings import ClientSettings
from phalanx.paramserver.connection import max_frame_bytes
from phalanx.paramserver.handshake import ClientIdentity, digest_of
from phalanx.paramserver.server import Server, ServerSettings
from phalanx.paramserver.shard import Shard
from phalanx.paramserver.update import SliceUpdater, StepSize
from phalanx.spec.optimize import SgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair
from phalanx.wire.parameter_server import ServerAddress

LIMIT_S = 120.0
SIZES = {"1.2 M": 1_200_000, "25 M": 25_000_000}
TARGET_PLAIN, TARGET_ENCRYPTED = 1.5, 0.5
ROUND_S = 0.5


class Site(NamedTuple):
    """Servers and workers of one measurement; plain data, because it goes to other processes."""

    num_parameters: int
    num_workers: int
    num_servers: int
    encrypt: bool
    server_keys: list[tuple[str, str]]
    worker_keys: list[tuple[str, str]]


def make_site(
    num_parameters: int, *, workers: int = 1, servers: int = 1, encrypt: bool = False
) -> Site:
    """A site with keys for everybody."""

    def keys(count: int) -> list[tuple[str, str]]:
        made = [KeyPair.make() for _ in range(count)]
        return [(pair.public, pair.secret) for pair in made]

    return Site(num_parameters, workers, servers, encrypt, keys(servers), keys(workers))


def serve(site: Site, index: int, pipe: Connection) -> None:
    """The body of a server process; ends when the other end of the pipe says so."""
    torch.set_num_threads(1)
    layout = plan_shards(
        site.num_parameters, num_servers=site.num_servers, min_shard_bytes=64 * 1024
    )
    rule = rule_for(ParameterServerSpec(consistency="async"))
    start, stop = layout.bounds(index)
    segments = layout.of_server(index)
    spec = SgdSpec(lr=0.01)
    shard = Shard(
        segments,
        updater=SliceUpdater(OptimizerFactory(spec), torch.zeros(stop - start), segments),
        policy=ConsistencyPolicy(rule, range(site.num_workers)),
        step_size=StepSize(lambda _: spec.lr, scaling="by_workers", rule=rule),
    )
    settings = ServerSettings(
        index=index,
        digest=digest_of(layout),
        max_frame_bytes=max_frame_bytes(layout),
        encrypt=site.encrypt,
    )
    keys = KeyPair(*site.server_keys[index])
    with Server(shard, keys=keys, settings=settings) as server:
        for rank, (public, _) in enumerate(site.worker_keys):
            server.admit(public, ClientIdentity("worker", rank, 1))
        address = server.address
        pipe.send((address.server, address.door, address.public_key))
        thread = threading.Thread(target=server.serve)
        thread.start()
        pipe.recv()
        facts = server.call(server.facts).result(LIMIT_S)
        pipe.send((facts.busy_share, facts.queue_mean, facts.staleness))
        server.stop()
        thread.join(LIMIT_S)


def work(site: Site, rank: int, pipe: Connection) -> None:
    """The body of a worker process: exchanges as many as it is told, and says how long it took."""
    torch.set_num_threads(1)
    addresses = [ServerAddress(*fields) for fields in pipe.recv()]
    with connected(site, rank, addresses) as exchange:
        pipe.send("ready")
        while (count := pipe.recv()) > 0:
            started = time.perf_counter()
            for _ in range(count):
                exchange()
            pipe.send(time.perf_counter() - started)


@contextmanager
def connected(
    site: Site, rank: int, addresses: list[ServerAddress]
) -> Iterator[Callable[[], None]]:
    """A connected client; yields its exchange."""
    layout = plan_shards(
        site.num_parameters, num_servers=site.num_servers, min_shard_bytes=64 * 1024
    )
    gradients = torch.full((site.num_parameters,), 0.001)
    client = Client(
        layout,
        parameters=torch.zeros(site.num_parameters),
        gradients=gradients,
        servers=addresses,
        settings=ClientSettings(worker=rank, keys=KeyPair(*site.worker_keys[rank])),
    )

    def exchange() -> None:
        client.begin(num_samples=1)
        client.finish()
        client.wait(Deadline.after(LIMIT_S, "an exchange"))

    with client:
        client.connect(Deadline.after(LIMIT_S, "the servers"))
        yield exchange


@contextmanager
def running(site: Site) -> Iterator[list[Connection]]:
    """Servers and workers as processes; yields the pipes to the workers."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:

        def start(target: Callable[..., None], index: int) -> Connection:
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(site, index, theirs))
            process.start()
            stack.callback(process.join, LIMIT_S)
            return ours

        servers = [start(serve, index) for index in range(site.num_servers)]
        addresses = [pipe.recv() for pipe in servers]
        workers = [start(work, rank) for rank in range(site.num_workers)]
        for pipe in workers:
            pipe.send(addresses)
        for pipe in workers:
            pipe.recv()
        try:
            yield workers
        finally:
            for pipe in workers:
                pipe.send(0)
            for pipe in servers:
                pipe.send("stop")
                pipe.recv()


def echo(pipe: Connection, num_bytes: int, add: bool) -> None:
    """The body of the bare TCP echo: what comes goes back, chunk by chunk."""
    torch.set_num_threads(1)
    chunk = torch.empty(MAX_SEGMENT_BYTES // 4)
    total = torch.zeros(MAX_SEGMENT_BYTES // 4)
    memory = chunk.numpy().data.cast("B")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                left = num_bytes
                while left:
                    size = min(left, MAX_SEGMENT_BYTES)
                    if not _receive(connection, memory[:size]):
                        return
                    if add:
                        total.add_(chunk)
                    connection.sendall(memory[:size])
                    left -= size


def _receive(connection: socket.socket, memory: memoryview) -> bool:
    received = 0
    while received < len(memory):
        count = connection.recv_into(memory[received:])
        if count == 0:
            return False
        received += count
    return True


@contextmanager
def tcp_limit(num_bytes: int, *, add: bool) -> Iterator[Callable[[], None]]:
    """A bare connection; yields what sends so many bytes and gets them back."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=echo, args=(theirs, num_bytes, add))
    process.start()
    out, back = torch.ones(num_bytes // 4), torch.empty(num_bytes // 4)
    sending, receiving = (t.numpy().data.cast("B") for t in (out, back))
    with socket.create_connection(("127.0.0.1", ours.recv())) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def there_and_back() -> None:
            sender = threading.Thread(target=connection.sendall, args=(sending,))
            sender.start()
            _receive(connection, receiving)
            sender.join()

        yield there_and_back
    process.join(LIMIT_S)


def timed(body: Callable[[], None], count: int) -> float:
    """Seconds per call."""
    started = time.perf_counter()
    for _ in range(count):
        body()
    return (time.perf_counter() - started) / count


def over_limits(num_parameters: int, rounds: int) -> dict[str, list[float]]:
    """GB/s of both directions, by what was measured, one entry per round."""
    num_bytes = 4 * num_parameters
    source, sink = torch.ones(num_parameters), torch.empty(num_parameters)

    def copy_twice() -> None:
        sink.copy_(source)
        source.copy_(sink)

    with ExitStack() as stack:
        plain = stack.enter_context(running(make_site(num_parameters)))[0]
        secret = stack.enter_context(running(make_site(num_parameters, encrypt=True)))[0]

        def told(pipe: Connection) -> Callable[[int], float]:
            def measure(count: int) -> float:
                pipe.send(count)
                return float(pipe.recv()) / count

            return measure

        bodies: dict[str, Callable[[int], float]] = {"memory copy": partial(timed, copy_twice)}
        for name, add in (("bare TCP", False), ("bare TCP + add", True)):
            there_and_back = stack.enter_context(tcp_limit(num_bytes, add=add))
            bodies[name] = partial(timed, there_and_back)
        bodies |= {"plain": told(plain), "encrypted": told(secret)}
        counts = {name: max(1, int(ROUND_S / body(1))) for name, body in bodies.items()}
        found: dict[str, list[float]] = {name: [] for name in bodies}
        for _ in range(rounds):
            for name, body in bodies.items():
                found[name].append(2 * num_bytes / body(counts[name]) / 1e9)
        return found


def growth(rounds: int) -> list[dict[str, object]]:
    """Time per push and total rate as workers, servers and the model grow, one at a time."""
    cases = [(w, 1, 1_200_000) for w in (1, 2, 3, 4)]
    cases += [(2, s, 10_000_000) for s in (1, 2, 3, 4)]
    cases += [(1, 1, size) for size in (100_000, 1_000_000, 10_000_000, 50_000_000)]
    rows: list[dict[str, object]] = []
    for workers, servers, size in cases:
        with running(make_site(size, workers=workers, servers=servers)) as pipes:
            count = max(3, min(200, int(2e8 / size / workers)))
            times = []
            for _ in range(rounds):
                for pipe in pipes:
                    pipe.send(count)
                times.append(max(float(pipe.recv()) for pipe in pipes))
        push_s = min(times) / count
        rows.append(
            {
                "workers": workers,
                "servers": servers,
                "parameters": size,
                "push_ms": 1000 * push_s,
                "pushes_per_s": workers / push_s,
                "gb_per_s": workers * 8 * size / push_s / 1e9,
            }
        )
    return rows


def show_limits(name: str, found: dict[str, list[float]]) -> None:
    """One table per model size."""
    median = {what: statistics.median(values) for what, values in found.items()}
    print(f"\n{name} parameters, push + apply + pull, GB/s of both directions")
    print(f"{'':16} {'median':>8} {'best':>8} {'of copy':>9} {'of TCP':>8} {'of TCP+add':>11}")
    for what, values in found.items():
        shares = [
            median[what] / median[limit] for limit in ("memory copy", "bare TCP", "bare TCP + add")
        ]
        print(
            f"{what:16} {median[what]:8.2f} {max(values):8.2f} "
            f"{shares[0]:9.0%} {shares[1]:8.0%} {shares[2]:11.0%}"
        )


def show_growth(rows: list[dict[str, object]]) -> None:
    """How cost grows."""
    print("\nGrowth (async, plain; best round)")
    heads = ("workers", "servers", "parameters", "ms/push", "pushes/s", "GB/s")
    print("{:>8} {:>8} {:>11} {:>9} {:>9} {:>6}".format(*heads))
    for row in rows:
        print(
            f"{row['workers']:>8} {row['servers']:>8} {row['parameters']:>11} "
            f"{row['push_ms']:9.2f} {row['pushes_per_s']:9.0f} {row['gb_per_s']:6.2f}"
        )


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--growth", action="store_true", help="also: workers, servers, model size")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )
    parser.add_argument("--tensorflow-python", help="also: updates/s against TensorFlow")
    options = parser.parse_args()
    torch.set_num_threads(1)
    limits = {name: over_limits(size, options.rounds) for name, size in SIZES.items()}
    rows = growth(max(3, options.rounds // 3)) if options.growth else []
    if options.json:
        print(json.dumps({"limits": limits, "growth": rows, "load": os.getloadavg()}))
        return
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"targets on an idle machine: plain {TARGET_PLAIN} GB/s, encrypted {TARGET_ENCRYPTED} GB/s"
    )
    for name, found in limits.items():
        show_limits(name, found)
    if rows:
        show_growth(rows)
    if options.tensorflow_python:
        print(flush=True)
        script = Path(__file__).with_name("async_updates.py")
        command = [sys.executable, script, "--tensorflow-python", options.tensorflow_python]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
