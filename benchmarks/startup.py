"""From the command to the first training step of four local workers: cold, warm, and torchrun.

Cold has every worker import torch; warm forks all of them from one process; shared forks them from
one that is there already, as in a study. torchrun starts four processes of an empty
DistributedDataParallel script that ends after one step, under the same command line as its
documentation shows. Rounds alternate, so noise hits all alike; medians over rounds count.

    python benchmarks/startup.py [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from phalanx.launch.fork_server import OFF, OWN, ForkServer
from phalanx.records.events import Step
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir

WORKERS = 4
LIMIT_S = 300.0
JOB = {
    "name": "startup",
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "epochs": 1,
    "workers": WORKERS,
    "strategy": "allreduce",
    "checkpoint": {"every_epochs": None, "best": None},
}
EMPTY_DDP = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 10))
model(torch.zeros(32, 64)).sum().backward()
if dist.get_rank() == 0:
    print(time.monotonic(), flush=True)
dist.destroy_process_group()
"""


def ours(folder: Path, setting: str) -> float:
    """Seconds from `phalanx train` until worker-0 has done its first step."""
    command = [sys.executable, "-m", "phalanx.cli.main", "train", "job.yaml", "--quiet", "--json"]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PHALANX_FORK_SERVER": setting},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    run = RunDir(folder / json.loads(done.stdout)["run_dir"])
    steps = (one for one in read_events(run.events_path("worker-0")) if isinstance(one, Step))
    return next(steps).mono_s - started


def torchrun(folder: Path) -> float:
    """Seconds from the command until rank 0 has done its first backward pass."""
    started = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={WORKERS}", "empty_ddp.py"),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    return float(done.stdout.split()[-1]) - started


def measure(rounds: int) -> dict[str, list[float]]:
    """Run every way once per round, in turns, after one run that decodes the data."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(json.dumps(JOB))
        (folder / "empty_ddp.py").write_text(EMPTY_DDP)
        server = ForkServer()
        server.start()
        try:
            ways: dict[str, Callable[[], float]] = {
                "cold": lambda: ours(folder, OFF),
                "warm": lambda: ours(folder, OWN),
                "shared": lambda: ours(folder, server.address),
                "torchrun": lambda: torchrun(folder),
            }
            ways["shared"]()
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, start in ways.items():
                    taken[way].append(start())
        finally:
            server.close()
    return taken


def main() -> None:
    """Measure and print medians with their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    taken = measure(arguments.rounds)
    medians = {way: statistics.median(times) for way, times in taken.items()}
    if arguments.json:
        print(json.dumps({"seconds": taken, "medians": medians}))
        return
    print(f"{WORKERS} workers, {os.cpu_count()} cores, median of {arguments.rounds} rounds")
    for way, seconds in medians.items():
        times = " ".join(f"{one:.2f}" for one in taken[way])
        print(f"{way:9} {seconds:6.2f} s  {seconds / medians['cold']:5.2f} of cold  ({times})")
    print(f"warm is {medians['warm'] / medians['torchrun']:.2f} of torchrun")


if __name__ == "__main__":
    main()
