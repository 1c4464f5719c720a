"""Speed of a worker with several threads beside other programs: how long idle threads may spin.

Trains the same small job under each setting, beside 0, 2 and 10 processes that only compute. The
settings take turns in every round, so that noise hits all alike; medians of samples per second over
the rounds count, and each is given as a share of the best at the same load. `default` is what
Phalanx sets; `library` is libgomp's own spin of 300,000, the default before.

    python benchmarks/threads.py [--rounds 5] [--loads 0 2 10] [--spins 1000 3000 30000] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LIMIT_S = 600.0
JOB = {
    "name": "threads",
    "model": "mnist-cnn",
    "data": "digits",
    "batch": {"global": 128},
    "epochs": 3,
    "evaluate": "never",
    "checkpoint": {"every_epochs": None, "best": None},
}
BUSY = "while True: pass"


def settings(spins: list[int]) -> dict[str, tuple[dict[str, str], list[str]]]:
    """Return variables and options of every setting, by name."""
    found: dict[str, tuple[dict[str, str], list[str]]] = {
        "default": ({}, []),
        "library": ({"GOMP_SPINCOUNT": "300000"}, []),
        "passive": ({"OMP_WAIT_POLICY": "PASSIVE"}, []),
        "one thread": ({}, ["--set", "threads=1"]),
        "not pinned": ({}, ["--set", "pin=false"]),
    }
    return found | {f"spin {one}": ({"GOMP_SPINCOUNT": str(one)}, []) for one in spins}


@contextlib.contextmanager
def busy_machine(num_processes: int) -> Iterator[None]:
    """Keep so many processes computing inside the block."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


def speed(folder: Path, variables: dict[str, str], options: list[str]) -> float:
    """Return the samples per second of one run, workers cold and warm alike: there is one."""
    command = [sys.executable, "-m", "phalanx", "train", "job.yaml", "--quiet", "--json", *options]
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**own, **variables},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    return float(json.loads(done.stdout)["samples_per_s"])


def measure(rounds: int, loads: list[int], spins: list[int]) -> dict[int, dict[str, list[float]]]:
    """Return samples per second by load and setting."""
    found: dict[int, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="phalanx-threads-") as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(json.dumps(JOB))
        speed(folder, {}, [])  # fills the cache of decoded data
        for load in loads:
            by_name = found.setdefault(load, {key: [] for key in settings(spins)})
            for number in range(rounds):
                with busy_machine(load):
                    for key, (variables, options) in settings(spins).items():
                        by_name[key].append(speed(folder, variables, options))
                print(f"load {load}: round {number + 1} of {rounds}", file=sys.stderr)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 2, 10])
    parser.add_argument("--spins", type=int, nargs="*", default=[1000, 3000, 30_000, 100_000])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    started = time.monotonic()
    found = measure(asked.rounds, asked.loads, asked.spins)
    if asked.json:
        print(json.dumps({"seconds": time.monotonic() - started, "samples_per_s": found}))
        return
    for load, by_name in found.items():
        medians = {name: statistics.median(values) for name, values in by_name.items()}
        best = max(medians.values())
        print(f"\n{load} busy processes beside it, {os.cpu_count()} cores")
        for name, median in medians.items():
            low, high = min(by_name[name]), max(by_name[name])
            share = f"{median / best:.2f} of the best"
            print(f"  {name:<12} {median:10,.0f} samples/s ({low:,.0f} to {high:,.0f})  {share}")


if __name__ == "__main__":
    main()
