"""What an all-reduce costs: Gloo, links of our own in the clear, and encrypted.

Every process has one compute thread. The ways take turns round by round, so that noise hits all
alike; each round begins after an exchange of one number, and rank 0's time counts. Best and median
of the rounds; ratios are of medians. With `--rate` each process is in a network namespace of its
own, behind a link of that many Mbit/s in each direction (needs root and `ip`, as `phalanx emulate`
does).

    python benchmarks/exchange.py [--processes 2 4 8] [--sizes 4096 5000000 100000000]
        [--rounds 9] [--rate MBIT] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.mesh import MeshCollective
from phalanx.pool.emulate import network
from phalanx.pool.emulate.layout import plan_layout
from phalanx.spec.cluster import ClusterSpec
from phalanx.wire.deadline import Deadline

LIMIT_S = 120.0
LOOPBACK = "127.0.0.1"
Times = dict[str, dict[str, list[float]]]


class FileChannel:
    """Cards of members in a file that all processes read."""

    def __init__(self, store: dist.FileStore) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        """Publish a value."""
        self._store.set(key, value)

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value; the store has a limit of its own."""
        return self._store.get(key)


def make_groups(folder: Path, rank: int, size: int, host: str) -> dict[str, Collective]:
    """Form one group per way."""
    store = dist.FileStore(str(folder / "store"), size)
    channel = FileChannel(store)
    names = [f"worker-{one}" for one in range(size)]
    groups: dict[str, Collective] = {
        "gloo": GlooCollective(store, rank=rank, size=size, host=host, deadline_s=LIMIT_S)
    }
    for name, encrypt in (("plain", "never"), ("encrypted", "always")):
        groups[name] = MeshCollective(
            channel,
            group=name,
            members=names,
            rank=rank,
            host=host,
            start_s=LIMIT_S,
            exchange_s=LIMIT_S,
            encrypt=encrypt,  # type: ignore[arg-type]
        )
    return groups


def measure(groups: dict[str, Collective], sizes: Sequence[int], rounds: int) -> Times:
    """Return the seconds of each round, by size and way."""
    found: Times = {}
    for size in sizes:
        tensor = torch.ones(size // 4)
        times: dict[str, list[float]] = {name: [] for name in groups}
        # Small ones are over so soon that many cost nothing.
        for number in range(rounds * (10 if size < 100_000 else 1) + 1):
            for name, group in groups.items():
                tensor.fill_(1.0)
                groups["gloo"].all_reduce(torch.zeros(1))
                began_s = time.perf_counter()
                group.all_reduce(tensor)
                if number > 0:
                    times[name].append(time.perf_counter() - began_s)
                assert tensor[0].item() == tensor[-1].item() == group.size
        found[str(size)] = times
    return found


def take_part(options: argparse.Namespace) -> None:
    """Measure as one of the processes; rank 0 writes what it found."""
    torch.set_num_threads(1)
    rank, size = options.rank
    groups = make_groups(Path(options.folder), rank, size, options.host)
    found = measure(groups, options.sizes, options.rounds)
    if rank == 0:
        Path(options.folder, "found.json").write_text(json.dumps(found))
    for group in groups.values():
        group.close()


@contextmanager
def machines(size: int, rate: int | None) -> Iterator[list[tuple[list[str], str]]]:
    """Give the beginning of each process's command, and its address."""
    if rate is None:
        yield [([], LOOPBACK)] * size
        return
    hosts = [{"name": f"m{n}", "link": f"{rate}Mbit/s"} for n in range(size)]
    spec = ClusterSpec.model_validate({"cluster": "exchange", "hosts": hosts})
    with tempfile.TemporaryDirectory() as state:
        layout = plan_layout(spec, Path(state), network.networks_in_use())
        try:
            network.create_links(layout)
            yield [(["ip", "netns", "exec", one.namespace], one.address) for one in layout.hosts]
        finally:
            network.remove_links(layout.prefix)


def run(size: int, options: argparse.Namespace) -> Times:
    """Measure with so many processes."""
    sizes = [str(one) for one in options.sizes]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        started = []
        for rank, (prefix, host) in enumerate(stack.enter_context(machines(size, options.rate))):
            command = [*prefix, sys.executable, __file__, "--rank", str(rank), str(size)]
            command += ["--host", host, "--folder", folder, "--rounds", str(options.rounds)]
            started.append(subprocess.Popen([*command, "--sizes", *sizes]))
            stack.callback(started[-1].kill)
        for one in started:
            if one.wait(4 * LIMIT_S):
                raise SystemExit(f"a process ended with {one.returncode}")
        times: Times = json.loads(Path(folder, "found.json").read_text())
        return times


def show(size: int, times: Times) -> None:
    """Print best and median of every way, and ratios to Gloo and to plain."""
    for length, ways in times.items():
        cells = [f"{size} processes, {int(length) / 1e6:>7.3f} MB:"]
        middle = {name: statistics.median(found) for name, found in ways.items()}
        for name, found in ways.items():
            cells.append(f"{name} {min(found) * 1e3:.2f} / {middle[name] * 1e3:.2f} ms")
        cells.append(f"plain {middle['gloo'] / middle['plain']:.2f}x gloo")
        cells.append(f"encrypted {middle['plain'] / middle['encrypted']:.2f}x plain")
        cells.append(f"encrypted {middle['gloo'] / middle['encrypted']:.2f}x gloo")
        print("  ".join(cells), flush=True)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 5_000_000, 100_000_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rate", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--host", default=LOOPBACK, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        take_part(options)
        return
    found = {}
    for size in options.processes:
        found[size] = run(size, options)
        if not options.json:
            show(size, found[size])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
