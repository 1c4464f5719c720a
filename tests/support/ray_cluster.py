"""A real Ray cluster on this machine: a head and further nodes, each with two cores to lend."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from support.waiting import wait_until

START_S = 60.0
_CORES = 2


@dataclass
class RayCluster:
    """A running cluster.

    Attributes:
        folder: Its logs.
        sockets: A folder with a short path.
        address: Where its head answers.
        nodes: The processes that hold its nodes, the head first.
    """

    folder: Path
    sockets: str
    address: str
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """Home directory on the nodes."""
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which commands find it, and report to nobody."""
        # Code, data and runs are kept in the home of whoever has started a node.
        own = {"HOME": str(self.home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        return {**os.environ, **own}  # noqa: TID251 (handed on)

    def add_node(self) -> None:
        """Start one more node; the first is the head."""
        name = f"node-{len(self.nodes)}"
        role = (
            ("--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false")
            if not self.nodes
            else (f"--address={self.address}",)
        )
        with (self.folder / f"{name}.out").open("wb") as out:
            self.nodes.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role),
                        *(f"--num-cpus={_CORES}", "--object-store-memory=100000000"),
                        *("--node-ip-address=127.0.0.1", "--disable-usage-stats"),
                        # Short, because a socket's path is limited to about 100 letters.
                        *(f"--temp-dir={self.sockets}",) * (not self.nodes),
                    ],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def ask(self, code: str) -> str:
        """Run code in a process that is connected to the cluster; returns what it prints."""
        begin = f"import ray; ray.init(address='{self.address}', logging_level='ERROR')\n"
        done = subprocess.run(
            [sys.executable, "-c", begin + code],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def cores(self) -> str:
        """Cores that the cluster has, and those that are free."""
        return self.ask(
            "import json\n"
            "total, free = ray.cluster_resources(), ray.available_resources()\n"
            "print(json.dumps([total.get('CPU', 0), free.get('CPU', 0)]))"
        )


@contextlib.contextmanager
def running_cluster(folder: Path, num_nodes: int = 2) -> Iterator[RayCluster]:
    """Start a cluster; everything of it ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "home").mkdir()
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as sockets:
        yield from _run(RayCluster(folder, sockets, f"127.0.0.1:{port}"), num_nodes, port)


def _run(cluster: RayCluster, num_nodes: int, port: int) -> Iterator[RayCluster]:
    try:
        for number in range(num_nodes):
            cluster.add_node()
            if number == 0:
                wait_until(lambda: _answers(port), "the head of Ray", limit_s=START_S)
        wanted = f"[{float(_CORES * num_nodes)}, {float(_CORES * num_nodes)}]"
        wait_until(lambda: cluster.cores() == wanted, "the nodes of Ray", limit_s=START_S)
        yield cluster
    finally:
        for node in reversed(cluster.nodes):
            node.terminate()
        for node in cluster.nodes:
            node.wait(START_S)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
