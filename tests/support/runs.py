"""Trainings as a user starts them: the `phalanx` command in a folder of its own, real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from phalanx.launch.fork_server import chosen_fork_server
from phalanx.records.events import AnyEvent, Started
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir, Status
from support.waiting import wait_until

LIMIT_S = 110.0
# A job that goes on until something ends it.
ENDLESS = {
    "name": "endless",
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "epochs": 1_000_000,
    "workers": 2,
    "checkpoint": {"every_epochs": None, "best": None},
}


def is_running(pid: int) -> bool:
    """Whether a process is there; one that is dead but not yet buried is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Place:
    """A folder to start commands in, with a data directory and a cache.

    Args:
        folder: The current directory of the commands.
        cache: Where decoded data is kept; may be shared between places.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        self.runs = folder / "runs"
        self.data = folder / "data"
        self.environment: dict[str, str] = {}

    def write_job(self, job: dict[str, Any], name: str = "job.yaml") -> str:
        """Write a job file; JSON is YAML too."""
        (self.folder / name).write_text(json.dumps(job))
        return name

    def command(self, *arguments: str) -> list[str]:
        """The command line; `env` replaces itself by the command, so the process is the same."""
        settings = [
            f"PHALANX_RUNS={self.runs}",
            f"PHALANX_DATA={self.data}",
            f"PHALANX_CACHE={self.cache}",
            f"PHALANX_FORK_SERVER={chosen_fork_server()}",
            *(f"{name}={value}" for name, value in self.environment.items()),
        ]
        return ["env", *settings, str(Path(sys.executable).with_name("phalanx")), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def summary(self, *arguments: str) -> dict[str, Any]:
        """Train to the end; returns what `--json` printed."""
        done = self.run("train", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @contextmanager
    def start(self, *arguments: str) -> Iterator[Training]:
        """Start a training and hand it over; it is killed if the block does not end it."""
        with subprocess.Popen(
            self.command("train", *arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Training(process, self.runs)
            finally:
                process.kill()


class Training:
    """A training under way, in the only run directory below `runs`."""

    def __init__(self, process: subprocess.Popen[str], runs: Path) -> None:
        self.process = process
        self._runs = runs

    @property
    def run(self) -> RunDir:
        """The run directory, once it is there."""
        return RunDir(self._wait(lambda: next(self._runs.glob("*/status.json"), None)).parent)

    def worker_pids(self, num_workers: int = 2) -> list[int]:
        """The workers by rank, once all of them train."""
        run = self.run

        def pids() -> list[int] | None:
            found = [started_pid(run, rank) for rank in range(num_workers)]
            known = [pid for pid in found if pid is not None]
            return known if len(known) == num_workers else None

        return self._wait(pids)

    def wait_for_checkpoint(self) -> Path:
        """The first checkpoint that appears."""
        folder = self.run.checkpoints
        return self._wait(lambda: next(folder.glob("samples-*.safetensors"), None))

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns exit code and standard error."""
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors

    def _wait(self, probe: Any) -> Any:
        def watched() -> Any:
            found = probe()
            if not found and self.process.poll() is not None:
                raise AssertionError(f"the training has ended: {self.end()}")
            return found

        return wait_until(watched, "the training to come so far", limit_s=LIMIT_S)


def events_of(run: RunDir, process: str) -> list[AnyEvent]:
    """Everything that a process wrote down."""
    return list(read_events(run.events_path(process)))


def started_pid(run: RunDir, rank: int) -> int | None:
    """The process id of a worker's last start, if it has come to train."""
    found = [event for event in events_of(run, f"worker-{rank}") if isinstance(event, Started)]
    return found[-1].pid if found else None


def status_of(training: Training) -> Status:
    """Where the run stands by its own record."""
    return training.run.read_status()
