"""A user's script under `phalanx launch` against the same job in our own loop, and plain DDP.

Three contenders train the same network, built by the same function, on batches in memory: a script
with a session (`phalanx launch`), a job file of ours (`phalanx train`), and the script as its user
would write it for DistributedDataParallel (`torchrun`, which records nothing). 2 workers of one
thread, all-reduce, SGD with momentum, no evaluation, no checkpoint. Rounds alternate (A B C A B C
...), so that noise hits all alike; ratios are taken within a round, and medians over rounds count.

The time of a step is the mean between the ends of two, after the first fifth of the steps.

    python benchmarks/session.py [--task transformer ...] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.records.events import Step
from phalanx.records.log import read_events

WORKERS, LIMIT_S = 2, 120.0
SESSION, LOOP, DDP = "session", "own loop", "plain DDP"
MOST_COST, LEAST_SPEED = 0.02, 1.0
"""Targets: of a step, against our own loop; times as fast as DDP."""


class Task(NamedTuple):
    """A network, its global batch, and how many steps take some four seconds."""

    name: str
    batch: int
    steps: int


TASKS = (Task("transformer", 32, 150), Task("cnn", 128, 40))

NETWORKS = """
from torch import nn

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.layers(self.embed(x.reshape(-1, 28, 28))).mean(1))

def transformer():
    return Transformer()

def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4608, 128), nn.ReLU(), nn.Linear(128, 10),
    )
"""

SCRIPT = """
import sys, torch, networks
import torch.nn.functional as F
import phalanx

name, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = getattr(networks, name)()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batches = [(torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))) for _ in range(10)]
session = phalanx.session()
session.setup(model, optimizer)
for x, y in session.data(lambda: batches, steps=steps):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

DDP_SCRIPT = """
import json, sys, time, torch, networks
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
name, steps = sys.argv[1], int(sys.argv[3])
batch = int(sys.argv[2]) // dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(getattr(networks, name)())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batches = [(torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))) for _ in range(10)]
ends = []
for step in range(steps):
    x, y = batches[step % 10]
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    ends.append(time.monotonic())
if dist.get_rank() == 0:
    print(json.dumps(ends))
dist.destroy_process_group()
"""


def prepare(folder: Path) -> None:
    """Write what the contenders run."""
    (folder / "networks.py").write_text(NETWORKS)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "train_ddp.py").write_text(DDP_SCRIPT)
    generator = np.random.default_rng(1)
    for task in TASKS:
        # A tenth of a file becomes its test part.
        count = -(-task.batch * task.steps * 10 // 9)
        images = generator.integers(0, 256, (count, 28, 28, 1), dtype=np.uint8)
        np.savez(folder / f"{task.name}.npz", x=images, y=generator.integers(0, 10, count))


def job_of(task: Task, folder: Path) -> dict[str, object]:
    """The job of our own loop."""
    return {
        "model": f"networks:{task.name}",
        "python_path": [str(folder)],
        "data": {"name": f"{task.name}.npz", "validation": 0, "normalize": "unit"},
        "batch": {"global": task.batch},
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
        "strategy": "allreduce",
        "epochs": 1,
        "workers": WORKERS,
        "threads": 1,
        "precision": "fp32",
        "evaluate": "never",
        "checkpoint": {"every_epochs": None, "best": None},
    }


def command_of(contender: str, task: Task, folder: Path) -> list[str]:
    """Return the command of a contender, for `folder`."""
    ours = str(Path(sys.executable).with_name("phalanx"))
    arguments = [task.name, str(task.batch), str(task.steps)]
    if contender == SESSION:
        quiet = ["--set", "checkpoint.every_epochs=null", "--set", "checkpoint.best=null"]
        settings = ["--workers", str(WORKERS), "--set", "threads=1", *quiet]
        return [ours, "launch", "--json", *settings, "train.py", *arguments]
    if contender == LOOP:
        (folder / "job.yaml").write_text(json.dumps(job_of(task, folder)))
        return [ours, "train", "job.yaml", "--json"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, f"--nproc-per-node={WORKERS}", "train_ddp.py", *arguments]


def step_s(contender: str, task: Task, folder: Path) -> float:
    """Run a contender; return the mean time of its steps."""
    places = {"PHALANX_RUNS": folder / "runs", "PHALANX_CACHE": folder / "cache"}
    places |= {"PHALANX_DATA": folder}
    environment = os.environ | {name: str(place) for name, place in places.items()}
    done = subprocess.run(
        command_of(contender, task, folder),
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"} if contender == DDP else environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{contender} of {task.name} failed:\n{done.stderr[-3000:]}")
    ends: list[float]
    if contender == DDP:
        ends = json.loads(done.stdout.splitlines()[-1])
    else:
        path = Path(json.loads(done.stdout)["run_dir"]) / "events" / "worker-0.jsonl"
        ends = [event.mono_s for event in read_events(path) if isinstance(event, Step)]
    if len(ends) < task.steps:
        raise SystemExit(f"{contender} of {task.name} made {len(ends)} steps, not {task.steps}")
    steady = ends[task.steps // 5 : task.steps]
    return statistics.mean(after - before for before, after in pairwise(steady))


def measure(tasks: Sequence[Task], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Every contender once a round, in turn; returns seconds of a step by task and contender."""
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="session-") as name:
        folder = Path(name)
        prepare(folder)
        for task in tasks:
            own = found[task.name] = {SESSION: [], LOOP: [], DDP: []}
            for number in range(rounds):
                for contender, times in own.items():
                    times.append(step_s(contender, task, folder))
                    text = f"{task.name}, {contender}: {1e3 * times[-1]:.2f} ms"
                    print(f"round {number + 1}: {text}", file=sys.stderr)
    return found


def table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Markdown: medians over rounds, and the session against the others with the range."""
    lines = [
        "| task | session | own loop | plain DDP | session costs | session is |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for task, times in found.items():
        medians = [f"{1e3 * statistics.median(times[name]):.2f} ms" for name in times]
        costs = [100 * cost for cost in ratios(times, LOOP)]
        speeds = [1 / (1 + cost) for cost in ratios(times, DDP)]
        cost = f"{statistics.median(costs):+.1f} % ({min(costs):+.1f} to {max(costs):+.1f})"
        speed = f"{statistics.median(speeds):.2f} x ({min(speeds):.2f} to {max(speeds):.2f})"
        lines.append(f"| {task} | {' | '.join(medians)} | {cost} | {speed} DDP |")
    return "\n".join(lines)


def ratios(times: Mapping[str, Sequence[float]], other: str) -> list[float]:
    """How much longer the session's steps are than another's, round by round."""
    return [ours / theirs - 1 for ours, theirs in zip(times[SESSION], times[other], strict=True)]


def verdicts(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """What was aimed at, and whether it was reached."""
    lines = []
    for task, times in found.items():
        cost = statistics.median(ratios(times, LOOP))
        speed = statistics.median(1 / (1 + one) for one in ratios(times, DDP))
        words = ["reached" if cost <= MOST_COST else "missed"]
        words.append("reached" if speed >= LEAST_SPEED else "missed")
        lines.append(f"{task}: costs {100 * cost:+.1f} % of at most 2 %: {words[0]}")
        lines.append(f"{task}: {speed:.2f} of at least 1.0 x DDP: {words[1]}")
    return lines


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="A script's session against our loop and DDP")
    names = [task.name for task in TASKS]
    parser.add_argument("--task", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--json", action="store_true", help="print seconds of a step as JSON")
    options = parser.parse_args()
    found = measure([task for task in TASKS if task.name in options.task], options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    print(table(found))
    print("\n" + "\n".join(verdicts(found)))


if __name__ == "__main__":
    main()
