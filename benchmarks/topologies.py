"""What an all-reduce costs along each topology, `auto` among them, and over Gloo.

Each host is a network namespace of its own behind an emulated link (needs root and `ip`, as
`phalanx pool emulate` does), with one process or several. Links: all of 100 Mbit/s, all of
1 Gbit/s, and all of 1 Gbit/s but for one host of 100 Mbit/s. Without root, `--loopback` puts every
process on this machine's loopback at full speed, with an address per host. Every process has one
compute thread. The ways take turns round by round, so that noise hits all alike; each round begins
after an exchange of one number, and the slowest process's time counts, as a step would. `auto`
measures first, as a run does, and then takes its turns; how far it is from the best of the named
ones is printed. Links of our own are encrypted between hosts, as in a run, unless `--plain`; Gloo
is always plain.

    sudo python benchmarks/topologies.py [--hosts 4] [--per-host 1] [--sizes 400000 5000000]
        [--links 100 1000 slow] [--rounds 9] [--plain] [--json FILE]
    python benchmarks/topologies.py --loopback [...]
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

from exchange import FileChannel
from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.mesh import MeshCollective
from phalanx.pool.emulate import network
from phalanx.pool.emulate.layout import plan_layout
from phalanx.spec.cluster import ClusterSpec
from phalanx.strategy.topology_trial import TopologyTrial

LIMIT_S = 300.0
SLOW_MBIT, FAST_MBIT = 100, 1000
LINKS = {
    "100": "all links 100 Mbit/s",
    "1000": "all links 1 Gbit/s",
    "slow": "links 1 Gbit/s, one host 100 Mbit/s",
}
Times = dict[str, dict[str, list[float]]]


class Ways:
    """A Gloo group and one over links of our own, which goes along any topology.

    Args:
        options: Of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        rank, size = options.rank
        store = dist.FileStore(str(Path(options.folder, "store")), size)
        self.gloo = GlooCollective(
            store, rank=rank, size=size, host=options.host, deadline_s=LIMIT_S
        )
        self.mesh = MeshCollective(
            FileChannel(store),
            group="topologies",
            members=[f"worker-{one}" for one in range(size)],
            rank=rank,
            host=options.host,
            start_s=LIMIT_S,
            exchange_s=LIMIT_S,
            encrypt="never" if options.plain else "auto",
        )

    def choose(self, num_bytes: int) -> str:
        """Return what `auto` takes for sums of this size."""
        trial = TopologyTrial("auto", self.mesh)
        trial.settle([num_bytes])
        chosen = trial.export_state().get("topology")
        return bytes(chosen.tolist()[1:]).decode() if chosen is not None else "direct"

    def close(self) -> None:
        """Leave both groups."""
        self.mesh.close()
        self.gloo.close()


def measure(ways: Ways, sizes: Sequence[int], rounds: int) -> dict[str, object]:
    """Return the seconds of each round, by size and way, and what `auto` chose."""
    times: Times = {}
    chosen: dict[str, str] = {}
    for size in sizes:
        tensor = torch.zeros(size // 4)
        chosen[str(size)] = ways.choose(size)
        turns: list[tuple[str, Collective, str]] = [("Gloo", ways.gloo, "direct")]
        turns += [(name, ways.mesh, name) for name in ways.mesh.topologies()]
        turns += [("auto", ways.mesh, chosen[str(size)])]
        found: dict[str, list[float]] = {name: [] for name, _, _ in turns}
        for number in range(rounds + 1):
            for name, group, topology in turns:
                group.use_topology(topology)
                taken_s = timed(group, tensor)
                if number > 0:
                    found[name].append(taken_s)
        times[str(size)] = found
    return {"times": times, "chosen": chosen}


def timed(group: Collective, tensor: torch.Tensor) -> float:
    """Return the seconds of one all-reduce, as the slowest process saw it."""
    tensor.fill_(1.0)
    group.all_reduce(torch.zeros(1))
    began_s = time.perf_counter()
    group.all_reduce(tensor)
    taken_s = torch.tensor([time.perf_counter() - began_s], dtype=torch.float64)
    assert tensor[0].item() == tensor[-1].item() == group.size
    group.all_reduce(taken_s, "max")
    return float(taken_s.item())


def take_part(options: argparse.Namespace) -> None:
    """Measure as one of the processes; rank 0 writes what it found."""
    torch.set_num_threads(1)
    ways = Ways(options)
    found = measure(ways, options.sizes, options.rounds)
    if options.rank[0] == 0:
        Path(options.folder, "found.json").write_text(json.dumps(found))
    ways.close()


@contextmanager
def machines(link: str, options: argparse.Namespace) -> Iterator[list[tuple[list[str], str]]]:
    """Give the beginning of each process's command, and its address."""
    count = options.hosts
    if options.loopback:
        hosts = [([], f"127.0.0.{1 + number}") for number in range(count)]
        yield [host for host in hosts for _ in range(options.per_host)]
        return
    rates = [SLOW_MBIT if link == "100" else FAST_MBIT] * count
    if link == "slow":
        rates[-1] = SLOW_MBIT
    described = [{"name": f"m{n}", "link": f"{rate}Mbit/s"} for n, rate in enumerate(rates)]
    spec = ClusterSpec.model_validate({"cluster": "topologies", "hosts": described})
    with tempfile.TemporaryDirectory() as state:
        layout = plan_layout(spec, Path(state), network.networks_in_use())
        try:
            network.create_links(layout)
            found = [(["ip", "netns", "exec", one.namespace], one.address) for one in layout.hosts]
            yield [host for host in found for _ in range(options.per_host)]
        finally:
            network.remove_links(layout.prefix)


def run(link: str, options: argparse.Namespace) -> dict[str, object]:
    """Measure over links of one sort."""
    sizes = [str(one) for one in options.sizes]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = stack.enter_context(machines(link, options))
        started = []
        for rank, (prefix, host) in enumerate(places):
            command = [*prefix, sys.executable, __file__, "--rank", str(rank), str(len(places))]
            command += ["--host", host, "--folder", folder, "--rounds", str(options.rounds)]
            command += ["--plain"] if options.plain else []
            started.append(subprocess.Popen([*command, "--sizes", *sizes]))
            stack.callback(started[-1].kill)
        for one in started:
            if one.wait(4 * LIMIT_S):
                raise SystemExit(f"a process ended with {one.returncode}")
        found: dict[str, object] = json.loads(Path(folder, "found.json").read_text())
        return found


def show(link: str, found: dict[str, object], options: argparse.Namespace) -> None:
    """Print medians as a table, and how far `auto` is from the best topology."""
    times: Times = found["times"]  # type: ignore[assignment]
    chosen: dict[str, str] = found["chosen"]  # type: ignore[assignment]
    where = "loopback" if options.loopback else LINKS[link]
    print(f"\n{options.hosts} hosts with {options.per_host} each, {where}; ms, median of rounds\n")
    names = list(next(iter(times.values())))
    print(f"| MB | {' | '.join(names)} | auto chose | auto to the best |")
    print("|---:|" + "---:|" * len(names) + "---|---:|")
    for size, ways in times.items():
        middle_s = {name: statistics.median(taken_s) for name, taken_s in ways.items()}
        best_s = min(middle_s[name] for name in names if name not in ("Gloo", "auto"))
        cells = " | ".join(f"{1e3 * middle_s[name]:.1f}" for name in names)
        ratio = middle_s["auto"] / best_s
        print(f"| {int(size) / 1e6:g} | {cells} | {chosen[size]} | {ratio:.2f} |", flush=True)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--per-host", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[400_000, 5_000_000])
    parser.add_argument("--links", nargs="+", default=list(LINKS), choices=LINKS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plain", action="store_true", help="without encryption, as Gloo is")
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        take_part(options)
        return
    found = {}
    for link in ["loopback"] if options.loopback else options.links:
        found[link] = run(link, options)
        show(link, found[link], options)
    if options.json is not None:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
