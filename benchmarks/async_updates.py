"""Asynchronous updates per second against TensorFlow's ParameterServerStrategy.

Both train the MLP 300-100 (266,610 parameters) with plain SGD on the same 28x28 noise, 64 samples a
step, with so many workers and one server as processes on this machine, one compute thread each.
Rounds alternate, so noise hits all alike, and medians over rounds count. TensorFlow is measured
twice: one step per scheduled function, as its guide writes the loop, and ten, as the same guide
advises for speed.

Counted are finished updates after a warm-up, process start excluded. Ours are taken from the
records of a real run: from one worker's step to another's, with the ends of epochs, checkpoints and
shuffling in between, which TensorFlow is spared. The CPU time of all processes per update is shown
too: on a machine that other programs use it says more than the rate, and where there are fewer
cores than processes it decides the rate.

    python benchmarks/async_updates.py [--rounds 5] [--tensorflow-python PATH] [--json]
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from phalanx import api
from phalanx.records.events import Step
from phalanx.records.log import read_events

SAMPLES, BATCH, LR = 60_000, 64, 0.01
WARM_UP = 400
TARGET = 3.0
STOP_S = 30.0
SAMPLE_S = 0.5
OURS = "phalanx"
PACKS = {"tensorflow, 1 step per call": 1, "tensorflow, 10 steps per call": 10}


def make_data(path: Path) -> None:
    """Noise shaped like MNIST; the content does not matter for speed."""
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (SAMPLES, 784), dtype=np.uint8)
    np.savez(path, x=images, y=generator.integers(0, 10, SAMPLES))


class Rate(NamedTuple):
    """What a round found."""

    updates_per_s: float
    cpu_ms: float
    """Per update, over all processes."""


def cpu_s(pid: int) -> float:
    """What a process and its children have used so far, user and system."""
    total = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextmanager
def sampled() -> Iterator[list[tuple[float, float]]]:
    """Yields what becomes a list of moments, and of the CPU time used up to each."""
    samples: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            samples.append((time.monotonic(), cpu_s(os.getpid()) - others))

    # The other side's processes are idle, but what they used before is not ours.
    others = cpu_s(os.getpid())
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def our_rate(data: Path, scratch: Path, *, workers: int, updates: int) -> Rate:
    """One run, from its records."""
    # A data file without a test part of its own gives up a tenth for one.
    epochs = -(-(updates + WARM_UP) * BATCH // (SAMPLES * 9 // 10))
    with sampled() as samples:
        summary = api.train(
            {
                "name": "async-updates",
                "model": {"name": "mlp", "hidden": [300, 100]},
                "data": {"name": str(data), "validation": 0, "normalize": "unit"},
                "batch": {"per_worker": BATCH},
                "optimizer": {"name": "sgd", "lr": LR},
                "strategy": {
                    "name": "parameter_server",
                    "consistency": "async",
                    "dispatch": "dynamic",
                    "servers": 1,
                },
                "epochs": epochs,
                "workers": workers,
                "threads": 1,
                "evaluate": "never",
            },
            runs=scratch / "runs",
            cache_root=scratch / "cache",
        )
    logs = Path(summary.run_dir, "events").glob("worker-*.jsonl")
    steps = sorted(e.mono_s for log in logs for e in read_events(log) if isinstance(e, Step))
    first, last = steps[WARM_UP], steps[-1]
    rate = (len(steps) - 1 - WARM_UP) / (last - first)
    within = [sample for sample in samples if first <= sample[0] <= last]
    (began, used_before), (ended, used) = within[0], within[-1]
    return Rate(rate, 1000 * (used - used_before) / (ended - began) / rate)


def has_tensorflow(python: str) -> bool:
    """Whether an interpreter can import it; a look at the files does, importing takes seconds."""
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


@contextmanager
def tensorflow(
    python: str, data: Path, log: Path, *, workers: int, pack: int
) -> Iterator[Callable[[int], Rate]]:
    """A cluster that is warmed up and waits; yields what does so many updates, per second."""
    command = [python, str(Path(__file__).with_name("tensorflow_server.py"))]
    settings = {"data": data, "workers": workers, "batch": BATCH, "lr": LR, "pack": pack}
    settings["warm-up"] = WARM_UP
    command += [f"--{name}={value}" for name, value in settings.items()]
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True) as chief,
    ):
        assert chief.stdin is not None
        assert chief.stdout is not None
        if chief.stdout.readline() != "ready\n":
            raise SystemExit(f"TensorFlow did not start:\n{log.read_text()[-3000:]}")

        def rate(updates: int) -> Rate:
            assert chief.stdin is not None
            assert chief.stdout is not None
            used = cpu_s(chief.pid)
            chief.stdin.write(f"{updates}\n")
            chief.stdin.flush()
            found = json.loads(chief.stdout.readline())
            used = cpu_s(chief.pid) - used
            return Rate(found["updates"] / found["seconds"], 1000 * used / found["updates"])

        try:
            yield rate
        finally:
            chief.stdin.close()
            chief.wait(STOP_S)


def measure(options: argparse.Namespace) -> dict[str, list[Rate]]:
    """What was found, by whose it is, one entry per round."""
    python = options.tensorflow_python
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="async-updates-")))
        data = scratch / "noise.npz"
        make_data(data)
        theirs: dict[str, Callable[[int], Rate]] = {}
        if has_tensorflow(python):
            for name, pack in PACKS.items():
                cluster = tensorflow(
                    python, data, scratch / f"{pack}.log", workers=options.workers, pack=pack
                )
                theirs[name] = stack.enter_context(cluster)
        else:
            print(
                f"{python} has no TensorFlow; to compare with it: pip install -c constraints.txt "
                "-e '.[tensorflow]', or name another interpreter with --tensorflow-python",
                file=sys.stderr,
            )
        found: dict[str, list[Rate]] = {name: [] for name in (OURS, *theirs)}
        for _ in range(options.rounds):
            rate = our_rate(data, scratch, workers=options.workers, updates=options.updates)
            found[OURS].append(rate)
            for name, their_rate in theirs.items():
                found[name].append(their_rate(options.tensorflow_updates))
        return found


def show(found: dict[str, list[Rate]], workers: int) -> None:
    """One table, and what it counts."""
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"MLP 300-100, batch {BATCH}, plain SGD, {workers} workers, 1 server, asynchronous")
    heads = ("updates/s", "samples/s", "best", "ours is", "CPU ms", "ours is")
    print("{:30} {:>9} {:>9} {:>6} {:>8} {:>7} {:>8}".format("", *heads))
    ours = middle(found[OURS])
    for name, rates in found.items():
        rate, cpu_ms = middle(rates)
        best = max(one.updates_per_s for one in rates)
        faster, leaner = "", ""
        if name != OURS:
            faster, leaner = f"{ours.updates_per_s / rate:.2f}x", f"1/{cpu_ms / ours.cpu_ms:.2f}"
        print(
            f"{name:30} {rate:9.0f} {rate * BATCH:9.0f} {best:6.0f} {faster:>8} "
            f"{cpu_ms:7.2f} {leaner:>8}"
        )
    print("counted: updates finished per second after a warm-up, and the CPU time of all processes")
    print(f"per update; medians over rounds in turn. Target: {TARGET:g}x TensorFlow's custom loop")


def middle(rates: list[Rate]) -> Rate:
    """The medians."""
    return Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--updates", type=int, default=3000, help="of ours, per round, at least")
    parser.add_argument("--tensorflow-updates", type=int, default=1000, help="per round")
    parser.add_argument(
        "--tensorflow-python", default=sys.executable, help="interpreter that has TensorFlow"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        rounds = {name: [rate._asdict() for rate in rates] for name, rates in found.items()}
        print(json.dumps({"rounds": rounds, "load": os.getloadavg()}))
    else:
        show(found, options.workers)


if __name__ == "__main__":
    main()
