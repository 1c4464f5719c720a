"""An emulated cluster that tests train on over ssh, and what they look at there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from phalanx.pool.emulate.cluster import EmulatedCluster
from phalanx.pool.emulate.system import obstacle
from phalanx.records.events import Decision, Epoch, Failure, Started
from phalanx.records.log import read_events, read_logs
from phalanx.spec.pool_file import load_cluster
from support.waiting import wait_until

CLUSTER = """\
cluster: lab
hosts:
  - {name: a, cores: 0.6, memory: 2GB, link: 1Gbit/s, watts_idle: 20, watts_full: 60}
  - {name: b, cores: 0.5, memory: 2GB, link: 1Gbit/s}
  - {name: c, cores: 0.4, memory: 2GB, link: 100Mbit/s}
  - {name: d, cores: 0.4, memory: 2GB, link: 100Mbit/s}
"""
JOB = """\
name: job
data: digits
model: mlp
epochs: 2
# Short, so that losses are noticed early; long enough for a busy machine.
deadlines: {heartbeat_s: 5, controller_s: 6}
"""
HOSTS = ("a", "b", "c", "d")
LIMIT_S = 110
SERVED = "{name: parameter_server, servers: 1}"


@dataclass
class Lab:
    """A cluster that is up, and a place to call commands from."""

    folder: Path

    @property
    def pool(self) -> Path:
        return self.folder / "state" / "lab" / "pool.yaml"

    @property
    def cluster(self) -> EmulatedCluster:
        return EmulatedCluster(load_cluster(self.folder / "cluster.yaml"), self.folder / "state")

    def command(self, *arguments: str) -> list[str]:
        home = f"HOME={self.folder / 'home'}"
        return ["env", home, sys.executable, "-m", "phalanx.cli.main", *arguments]

    def train(self, *arguments: str, pool: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command("train", *arguments, "--pool", str(pool or self.pool)),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def train_here(self, *arguments: str) -> dict[str, Any]:
        """The same on this machine alone; returns the summary."""
        aside = ("--runs", str(self.folder / "here"), "--workers", str(len(HOSTS)), "--json")
        done = subprocess.run(
            self.command("train", *arguments, *aside),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def start(
        self, *arguments: str, pool: Path | None = None, fork_server: str = "own"
    ) -> subprocess.Popen[str]:
        command = self.command("train", "job.yaml", "--pool", str(pool or self.pool), *arguments)
        return subprocess.Popen(
            ["env", f"PHALANX_FORK_SERVER={fork_server}", *command],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pool_of(self, host: str, *, slots: int) -> Path:
        """A pool of one host that takes several workers."""
        pool = YAML(typ="safe").load(self.pool)
        [machine] = [one for one in pool["machines"] if one["name"] == host]
        path = self.pool.with_name(f"{host}.yaml")
        # JSON is YAML too.
        path.write_text(json.dumps(pool | {"machines": [machine | {"slots": slots}]}))
        return path

    def starts(self, process: str) -> list[Started]:
        log = self.run_dir() / "events" / f"{process}.jsonl"
        found = read_events(log, Started) if log.exists() else []
        return [one for one in found if isinstance(one, Started)]

    def await_starts(self, before: int, *processes: str) -> list[Started]:
        """Wait for the first start of each process of the run that follows."""
        wait_until(lambda: self.num_runs() > before, "the run directory", limit_s=LIMIT_S)
        for process in processes:
            wait_until(lambda name=process: self.starts(name), "its start", limit_s=LIMIT_S)
        return [self.starts(process)[0] for process in processes]

    def run_dir(self) -> Path:
        return max((self.folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)

    def num_runs(self) -> int:
        runs = self.folder / "runs"
        return len(list(runs.iterdir())) if runs.exists() else 0

    def await_training(self, before: int, num_epochs: int = 2) -> Path:
        """Wait until the records of other machines that have come here show that it trains."""
        wait_until(lambda: self.num_runs() > before, "the run directory", limit_s=LIMIT_S)
        run = self.run_dir()

        def has_trained() -> bool:
            logs = read_logs(run / "events", Epoch)
            return sum(len(epochs) for epochs in logs.values()) >= num_epochs

        wait_until(has_trained, "the run to train", limit_s=LIMIT_S)
        return run

    def processes(self, host: str, text: str) -> list[int]:
        found = []
        for pid in self.cluster.processes(host):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if text in command:
                found.append(pid)
        return found

    def leftovers(self) -> list[str]:
        """Whatever a run has left on the hosts: processes besides ssh servers, directories."""
        found = [
            f"{host}: process {pid}" for host in HOSTS for pid in self.processes(host, "python")
        ]
        places = (self.folder / "state" / "lab" / "hosts").glob("*/work/*")
        return found + [str(path) for path in places]

    def await_clean(self) -> None:
        wait_until(lambda: not self.leftovers(), "the hosts to be clean", limit_s=10.0)

    def decisions(self) -> list[str]:
        log = self.run_dir() / "events" / "controller.jsonl"
        return [one.what for one in read_events(log, Decision) if isinstance(one, Decision)]

    def causes(self) -> list[str]:
        log = self.run_dir() / "events" / "controller.jsonl"
        return [one.cause for one in read_events(log, Failure) if isinstance(one, Failure)]


@contextlib.contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """A cluster that is up inside the block; skips where none can be emulated."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    lab = Lab(folder)
    (lab.folder / "cluster.yaml").write_text(CLUSTER)
    (lab.folder / "job.yaml").write_text(JOB)
    (lab.folder / "home").mkdir()
    cluster = lab.cluster
    try:
        cluster.up()
        yield lab
    finally:
        cluster.down()


def make_whole(lab: Lab) -> None:
    """Whatever a test does to the cluster, the next one finds it whole and empty."""
    for host in HOSTS:
        lab.cluster.switch_link(host, on=True)
    lab.await_clean()
