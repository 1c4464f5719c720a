"""A real Spark cluster on this machine: a standalone master and workers with two cores each."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from support.waiting import wait_until

START_S = 200.0
CORES = 2


def missing_parts() -> list[str]:
    """What a Spark cluster needs, and is not here."""
    parts = [] if find_spec("pyspark") else ["the extra spark"]
    return parts if shutil.which("java") else [*parts, "Java"]


@dataclass
class SparkCluster:
    """A running cluster.

    Attributes:
        folder: Its logs, and the home directory of its workers.
        port: Where its master answers.
        processes: Master and workers.
    """

    folder: Path
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        """The master as Spark writes it."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        """Home directory on the workers."""
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of workers and drivers."""
        own = {
            "HOME": str(self.home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_WORKER_DIR": str(self.folder / "work"),
        }
        return {**os.environ, **own}  # noqa: TID251 (handed on)

    def start(self, role: str, *arguments: str) -> None:
        """Start the master or a worker."""
        import pyspark

        name = f"{role.lower()}-{len(self.processes)}"
        home = Path(pyspark.__file__).parent
        with (self.folder / f"{name}.out").open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    [
                        str(home / "bin" / "spark-class"),
                        f"org.apache.spark.deploy.{role.lower()}.{role}",
                        *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
                    ],
                    env={**self.environment, "SPARK_DAEMON_MEMORY": "256m"},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def has_workers(self, count: int) -> bool:
        """Whether the master has taken so many workers on."""
        said = (self.folder / "master-0.out").read_text(errors="replace")
        return said.count("Registering worker") >= count

    def executors(self) -> list[psutil.Process]:
        """Return the executors of all applications."""
        found = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [
                    one
                    for one in psutil.Process(process.pid).children(recursive=True)
                    if _is_executor(one)
                ]
        return found


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    return False


@contextlib.contextmanager
def running_spark(folder: Path, num_workers: int = 2) -> Iterator[SparkCluster]:
    """Start a cluster; everything of it ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        cluster = SparkCluster(folder, probe.getsockname()[1])
    cluster.home.mkdir()
    try:
        cluster.start("Master", "--port", str(cluster.port))
        for _ in range(num_workers):
            cluster.start("Worker", "--cores", str(CORES), "--memory", "1g", cluster.master)
        wait_until(lambda: cluster.has_workers(num_workers), "Spark's workers", limit_s=START_S)
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            process.terminate()
        for process in cluster.processes:
            process.wait(START_S)
