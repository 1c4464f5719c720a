"""Synchronous training over slow links: ours with every compression against DDP with torch's hooks.

Speed: hosts of equal cores are emulated on this machine (root is needed) with links of the same
speed. Every contender is a real `phalanx train --pool` of the same job: the MNIST CNN (1.2 million
parameters), 32 samples per worker and step, noise shaped like MNIST, evaluation and checkpoints
off. Rounds alternate (A B C A B C ...), so that noise hits all alike; medians over rounds count.
Samples per second and bytes are those after the first epoch; bytes are what the kernel counted on
the hosts' links, everything included. "no exchange" computes alone between the ends of epochs.

Accuracy (`--accuracy`): the same jobs on MNIST itself, all workers on this machine, because a link
changes no number: test accuracy after equal samples, per seed.

    sudo python benchmarks/slow_links.py [--link 100Mbit/s] [--hosts 4] [--rounds 2] [--json FILE]
    python benchmarks/slow_links.py --accuracy --data DIR [--samples 12800] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np

from emulated import emulated
from phalanx.records.events import Epoch, Step
from phalanx.records.log import read_events

WORKER_BATCH, EPOCHS = 32, 3
LIMIT_S = 300.0
_NETWORK = Path("/sys/class/net")


def allreduce(compression: str | dict[str, Any] = "none", **fields: Any) -> dict[str, Any]:
    """The settings of a contender."""
    return {"strategy": {"name": "allreduce", "compression": compression}, **fields}


CONTENDERS: dict[str, dict[str, Any]] = {
    "DDP fp32": allreduce(backend="ddp"),
    "DDP bf16 hook": allreduce("bf16", backend="ddp"),
    "DDP PowerSGD hook": allreduce("powersgd", backend="ddp"),
    "none": allreduce(),
    "bf16": allreduce("bf16"),
    "int8": allreduce("int8"),
    "int4": allreduce("int4"),
    "powersgd": allreduce("powersgd"),
    "topk": allreduce("topk"),
    # Its trials are over within the first epoch, which does not count.
    "auto": allreduce({"name": "auto", "accept": "lossy", "steps": 1}),
    "local_sgd 8": {"strategy": "local_sgd"},
    "no exchange": {"strategy": {"name": "local_sgd", "every": 1_000_000}},
}


def cluster(link: str, num_hosts: int) -> str:
    """Equal hosts that share this machine's processor."""
    cores = 0.9 * (os.cpu_count() or 1) / num_hosts
    names = [f"h{number}" for number in range(num_hosts)]
    hosts = "".join(f"  - {{name: {n}, cores: {cores:.3f}, link: {link}}}\n" for n in names)
    return f"cluster: slow\nhosts:\n{hosts}"


def job_of(name: str, workers: int, **fields: Any) -> dict[str, Any]:
    """The same job for every contender."""
    return {
        "name": name.lower().replace(" ", "-"),
        "model": "mnist-cnn",
        "batch": {"per_worker": WORKER_BATCH},
        "workers": workers,
        "threads": 1,
        "precision": "fp32",
        "checkpoint": {"every_epochs": None, "best": None},
        **CONTENDERS[name],
        **fields,
    }


class LinkCounter:
    """Follow what the kernel counts as received from the hosts, in the background.

    Args:
        interfaces: This machine's ends of the links.
    """

    def __init__(self, interfaces: list[str]) -> None:
        self._files = [_NETWORK / one / "statistics" / "rx_bytes" for one in interfaces]
        self._samples: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> LinkCounter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.is_set():
            total = sum(int(file.read_text()) for file in self._files)
            self._samples.append((time.time(), total))
            self._over.wait(0.05)

    def between(self, begin_s: float, end_s: float) -> int:
        """Bytes between two moments of the wall clock."""
        times = [one for one, _ in self._samples]
        first, last = (min(bisect_left(times, at), len(times) - 1) for at in (begin_s, end_s))
        return self._samples[last][1] - self._samples[first][1]


def train(job: dict[str, Any], scratch: Path, *options: str) -> dict[str, Any]:
    """Train, and return the summary."""
    (scratch / "job.yaml").write_text(json.dumps(job))
    phalanx = str(Path(sys.executable).with_name("phalanx"))
    places = {"PHALANX_RUNS": scratch / "runs", "PHALANX_CACHE": scratch / "cache"}
    done = subprocess.run(
        [phalanx, "train", "job.yaml", "--json", "-q", *options],
        cwd=scratch,
        env=os.environ | {name: str(place) for name, place in places.items()},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{job['name']} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(job: dict[str, Any], pool: Path, scratch: Path, links: list[str]) -> dict[str, float]:
    """Train over the hosts; speed and bytes after the first epoch."""
    with LinkCounter(links) as counter:
        summary = train(job, scratch, "--pool", str(pool))
    log = scratch / summary["run_dir"] / "events" / "worker-0.jsonl"
    epochs = [event for event in read_events(log, Epoch) if isinstance(event, Epoch)]
    first, last = epochs[0], epochs[-1]
    steps = last.updates - first.updates
    logs = (log.with_name(f"worker-{rank}.jsonl") for rank in range(job["workers"]))
    counted = sum(
        event.sent_bytes
        for one in logs
        for event in read_events(one, Step)
        if isinstance(event, Step) and event.epoch > 0
    )
    return {
        "samples_per_s": (last.samples - first.samples) / (last.train_s - first.train_s),
        "kernel_bytes": counter.between(first.wall_s, last.wall_s) / len(links) / steps,
        "counted_bytes": counted / job["workers"] / steps,
    }


def compare_speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all contenders over the hosts, and print medians."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.only}
    hosts = arguments.hosts
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        draw = np.random.default_rng(1)
        num_samples = -(-arguments.steps * hosts * WORKER_BATCH * 10 // 9)
        images = draw.integers(0, 256, (num_samples, 28, 28, 1), dtype=np.uint8)
        np.savez(scratch / "noise.npz", x=images, y=draw.integers(0, 10, num_samples))
        data = {"name": str(scratch / "noise.npz"), "validation": 0, "normalize": "unit"}
        before = set(os.listdir(_NETWORK))
        with emulated(cluster(arguments.link, hosts), scratch) as pool:
            links = [
                one
                for one in sorted(set(os.listdir(_NETWORK)) - before)
                if not (_NETWORK / one / "bridge").exists()
            ]
            for number in range(arguments.rounds):
                for name in found:
                    fields = {"evaluate": "never", "epochs": EPOCHS, "data": data}
                    optimizer = {"name": "sgd", "lr": 0.01}
                    job = job_of(name, hosts, optimizer=optimizer, **fields)
                    found[name].append(measure(job, pool, scratch, links))
                    speed = found[name][-1]["samples_per_s"]
                    print(f"round {number + 1}: {name}: {speed:,.0f} samples/s", flush=True)
    print_speed(found)
    return found


def print_speed(found: dict[str, list[dict[str, float]]]) -> None:
    """Print medians over rounds as a table."""

    def median(name: str, key: str) -> float:
        return statistics.median(one[key] for one in found[name])

    speeds = {name: median(name, "samples_per_s") for name in found}
    best = max((speed for name, speed in speeds.items() if "DDP" in name), default=float("nan"))
    alone = speeds.get("no exchange", float("nan"))
    print("| | samples/s | of DDP's best | of no exchange | kB/step/host, kernel | counted |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, speed in speeds.items():
        kernel, counted = (median(name, key) / 1e3 for key in ("kernel_bytes", "counted_bytes"))
        print(
            f"| {name} | {speed:,.0f} | {speed / best:.2f} | {speed / alone:.2f} | {kernel:,.0f} | "
            f"{counted:,.0f} |"
        )


def compare_accuracy(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train all contenders on MNIST on this machine, and print their accuracy."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, arguments.seeds + 1):
            for name in arguments.only:
                job = job_of(
                    name,
                    arguments.hosts,
                    data={"name": "mnist", "limit": arguments.samples, "validation": 0},
                    optimizer={"name": "sgd", "lr": 0.05},
                    epochs=1,
                    evaluate="end",
                    seed=seed,
                )
                summary = train(job, Path(folder), "--data", str(arguments.data))
                found.setdefault(name, []).append(summary["test_accuracy"])
                print(f"seed {seed}: {name}: {found[name][-1]:.4f}", flush=True)
    print(f"| | {' | '.join(f'seed {one + 1}' for one in range(arguments.seeds))} | mean |")
    print("|---|" + "---:|" * (arguments.seeds + 1))
    for name, values in found.items():
        cells = " | ".join(f"{100 * one:.2f} %" for one in values)
        print(f"| {name} | {cells} | {100 * statistics.mean(values):.2f} % |")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", default="100Mbit/s")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="steps per epoch, of 3 epochs")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--data", type=Path, help="where MNIST lies")
    parser.add_argument("--samples", type=int, default=12_800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = compare_accuracy(arguments) if arguments.accuracy else compare_speed(arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
