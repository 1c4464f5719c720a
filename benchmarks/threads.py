"""Speed of a worker with several threads beside other programs: how long idle threads may spin.

One process per setting computes training steps of the same small job, as a worker does, whenever it
is its turn; beside them 0, 2 and 10 processes only compute. The settings take turns in every round,
so that noise hits all alike; medians of samples per second over the rounds count, and each is given
as a share of the best at the same load. `default` is what Phalanx does: a bounded spin, and as many
threads as cores are free when a run starts, which here is every turn; `all threads` is the spin
alone, `library` libgomp's own spin of 300,000, the default before both.

    python benchmarks/threads.py [--rounds 7] [--loads 0 2 10] [--spins 1000 30000] [--json]
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

from phalanx.launch.thread_choice import busy_beside, threads_beside_others
from phalanx.wire.forking import THREAD_VARIABLES, bounded_spin

JOB = {"model": "mnist-cnn", "data": "digits", "batch": {"global": 128}}
BUSY = "while True: pass"
# Long enough for several turns of the scheduler between all busy processes.
TURN_S, TURN_S_PER_PROCESS = 1.0, 0.3


def settings(spins: list[int]) -> dict[str, dict[str, str]]:
    """Return the variables of every setting, by name."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(len(os.sched_getaffinity(0))))
    found = {
        "default": threads | bounded_spin({}),
        "all threads": threads | bounded_spin({}),
        "library": threads | {"GOMP_SPINCOUNT": "300000"},
        "passive": threads | {"OMP_WAIT_POLICY": "PASSIVE"},
        "one thread": dict.fromkeys(THREAD_VARIABLES, "1") | bounded_spin({}),
    }
    return found | {f"spin {one}": threads | {"GOMP_SPINCOUNT": str(one)} for one in spins}


def compute(cache: str, *, fit: bool) -> None:
    """Compute steps for as many seconds as each line of standard input says; print the speed."""
    import torch

    from phalanx.data.pipeline import open_dataset
    from phalanx.spec.loader import job_from_mapping
    from phalanx.worker.replica import build_replica, first_batch

    job = job_from_mapping(JOB)
    dataset = open_dataset(job.data, data_root=Path(cache), cache_root=Path(cache))
    batch = first_batch(job, dataset, num_workers=1)
    replica = build_replica(job, dataset, rank=0, precision="fp32")
    step = 0
    print("ready", flush=True)
    cores = sorted(os.sched_getaffinity(0))
    for line in sys.stdin:
        if fit:
            torch.set_num_threads(threads_beside_others(len(cores), 1, busy_beside(cores)))
        began, first = time.perf_counter(), step
        while time.perf_counter() - began < float(line):
            replica.forward_backward(batch, step=step)
            replica.apply(0.001)
            step += 1
        speed = (step - first) * job.global_batch / (time.perf_counter() - began)
        print(speed, flush=True)


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


@contextlib.contextmanager
def workers(spins: list[int]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start a process for every setting; all wait for their turn inside the block."""
    prefixes = ("OMP_", "GOMP_", "MKL_", "OPENBLAS_")
    own = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    with contextlib.ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-threads-"))
        found = {}
        for name, variables in settings(spins).items():
            found[name] = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "--compute", cache]
                    + (["--fit"] if name == "default" else []),
                    env=own | variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert _answer(found[name]) == "ready"
        yield found


def turn(worker: subprocess.Popen[str], seconds: float) -> float:
    """Let a process compute for so long; returns samples per second."""
    assert worker.stdin is not None
    worker.stdin.write(f"{seconds}\n")
    worker.stdin.flush()
    return float(_answer(worker))


def _answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def measure(rounds: int, loads: list[int], spins: list[int]) -> dict[int, dict[str, list[float]]]:
    """Return samples per second by load and setting."""
    found: dict[int, dict[str, list[float]]] = {}
    with workers(spins) as by_setting:
        for one in by_setting.values():
            turn(one, TURN_S)
        for load in loads:
            speeds = found.setdefault(load, {name: [] for name in by_setting})
            with busy_machine(load):
                for number in range(rounds):
                    for name, one in by_setting.items():
                        speeds[name].append(turn(one, TURN_S + TURN_S_PER_PROCESS * load))
                    print(f"load {load}: round {number + 1} of {rounds}", file=sys.stderr)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 2, 10])
    parser.add_argument("--spins", type=int, nargs="*", default=[1000, 30_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--compute", help=argparse.SUPPRESS)
    parser.add_argument("--fit", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.compute is not None:
        compute(asked.compute, fit=asked.fit)
        return
    found = measure(asked.rounds, asked.loads, asked.spins)
    if asked.json:
        print(json.dumps({"samples_per_s": found}))
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
