"""Synchronous training over slow links: ours with every compression against DDP with torch's hooks.

Four hosts of equal cores are emulated on this machine (root is needed) with links of the same
speed. Every contender is a real `phalanx train --pool` of the same job: the MNIST CNN (1.2 million
parameters), 4 x 32 samples a step, noise shaped like MNIST, evaluation and checkpoints off. Rounds
alternate (A B C A B C ...), so that noise hits all alike; medians over rounds count. Speed is read
from the records after the first epoch, bytes are those of the workers' own counters.

    sudo python benchmarks/slow_links.py [--link 100Mbit/s] [--rounds 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from emulated import emulated
from phalanx.records.events import Epoch
from phalanx.records.log import read_events

WORKERS, WORKER_BATCH, SAMPLES, EPOCHS = 4, 32, 2_560, 3
LIMIT_S = 300.0
CONTENDERS: dict[str, dict[str, Any]] = {
    "DDP fp32": {"backend": "ddp", "strategy": "allreduce"},
    "DDP bf16 hook": {"backend": "ddp", "strategy": {"name": "allreduce", "compression": "bf16"}},
    "DDP PowerSGD hook": {
        "backend": "ddp",
        "strategy": {"name": "allreduce", "compression": "powersgd"},
    },
    "allreduce": {"strategy": "allreduce"},
    "allreduce bf16": {"strategy": {"name": "allreduce", "compression": "bf16"}},
    "allreduce powersgd": {"strategy": {"name": "allreduce", "compression": "powersgd"}},
    "local_sgd 8": {"strategy": "local_sgd"},
}


def cluster(link: str) -> str:
    """Four equal hosts."""
    hosts = "".join(f"  - {{name: {name}, cores: 0.45, link: {link}}}\n" for name in "abcd")
    return f"cluster: slow\nhosts:\n{hosts}"


def job_of(name: str, data: Path) -> dict[str, Any]:
    """The same job for every contender."""
    return {
        "name": name.lower().replace(" ", "-"),
        "model": "mnist-cnn",
        "data": {"name": str(data), "validation": 0, "normalize": "unit"},
        "batch": {"per_worker": WORKER_BATCH},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "epochs": EPOCHS,
        "workers": WORKERS,
        "threads": 1,
        "precision": "fp32",
        "evaluate": "never",
        "checkpoint": {"every_epochs": None, "best": None},
        **CONTENDERS[name],
    }


def train(job: dict[str, Any], pool: Path, scratch: Path) -> tuple[float, float]:
    """Train over the hosts; samples per second after the first epoch, and bytes per worker step."""
    (scratch / "job.yaml").write_text(json.dumps(job))
    phalanx = str(Path(sys.executable).with_name("phalanx"))
    places = {"PHALANX_RUNS": scratch / "runs", "PHALANX_CACHE": scratch / "cache"}
    done = subprocess.run(
        [phalanx, "train", "job.yaml", "--pool", str(pool), "--json", "-q"],
        cwd=scratch,
        env=os.environ | {name: str(place) for name, place in places.items()},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{job['name']} failed:\n{done.stderr[-3000:]}")
    summary = json.loads(done.stdout)
    epochs = [
        event
        for event in read_events(scratch / summary["run_dir"] / "events" / "worker-0.jsonl", Epoch)
        if isinstance(event, Epoch)
    ]
    first, last = epochs[0], epochs[-1]
    speed = (last.samples - first.samples) / (last.train_s - first.train_s)
    return speed, summary["bytes_sent"] / WORKERS / summary["updates"]


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", default="100Mbit/s")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in arguments.only}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        draw = np.random.default_rng(1)
        num_samples = -(-SAMPLES * 10 // 9)
        images = draw.integers(0, 256, (num_samples, 28, 28, 1), dtype=np.uint8)
        np.savez(scratch / "noise.npz", x=images, y=draw.integers(0, 10, num_samples))
        with emulated(cluster(arguments.link), scratch) as pool:
            for number in range(arguments.rounds):
                for name in found:
                    measured = train(job_of(name, scratch / "noise.npz"), pool, scratch)
                    found[name].append(measured)
                    print(f"round {number + 1}: {name}: {measured[0]:,.0f} samples/s", flush=True)
    best = max(
        (statistics.median(s for s, _ in rows) for n, rows in found.items() if "DDP" in n),
        default=float("nan"),
    )
    print(f"{'':22} samples/s  of DDP's best  MB/step/worker")
    for name, rows in found.items():
        speed = statistics.median(one for one, _ in rows)
        sent = statistics.median(one for _, one in rows) / 1e6
        print(f"{name:22} {speed:9,.0f}  {speed / best:13.2f}  {sent:14.3f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
