"""The native engine against plain DDP and against TensorFlow, by the same job files.

Every contender is a real `phalanx train` of the same job with another `backend`: 2 workers of one
thread, on noise shaped like MNIST or CIFAR-10, evaluation and checkpoints off. Networks are twins
(`tests/parity/test_twins.py`), batches and rules equal. Synchronous is `allreduce`, which under
TensorFlow is MultiWorkerMirroredStrategy; asynchronous is `parameter_server` with one server, there
ParameterServerStrategy. Rounds alternate (A B C A B C ...), so that noise hits all alike; medians
over rounds count, and ratios are taken within a round.

Rates are read from the records after the first epoch, which warms up (TensorFlow traces its graphs
there). Memory is the most that any one process ever held, CPU the time of all processes while they
trained, "first step" the time from a process's start to the end of its first step. Where the CPU
has bf16, `precision: auto` is measured too, and TensorFlow, which has no auto, in bf16.

    python benchmarks/peers.py [--task mlp ...] [--rounds 3] [--save FILE]
    python benchmarks/peers.py --show FILE ...      # one table of saved measurements
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.records.events import Epoch, ProcessSample, Started, Step
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.records.usage import totals

WORKERS, WORKER_BATCH = 2, 64
LIMIT_S = 300.0
NATIVE, DDP, TENSORFLOW = "native", "ddp", "tensorflow"
STRATEGIES: dict[str, object] = {
    "sync": "allreduce",
    "async": {
        "name": "parameter_server",
        "consistency": "async",
        "dispatch": "dynamic",
        "servers": 1,
    },
}
CONTENDERS = {"sync": (NATIVE, DDP, TENSORFLOW), "async": (NATIVE, TENSORFLOW)}


class Task(NamedTuple):
    """A network, its input, and how many samples make an epoch of one to three seconds."""

    name: str
    model: dict[str, object]
    shape: tuple[int, int, int]
    samples: int
    epochs: int


TASKS = (
    Task("mlp", {"name": "mlp", "hidden": [300, 100]}, (28, 28, 1), 25_600, 3),
    Task("mnist-cnn", {"name": "mnist-cnn"}, (28, 28, 1), 5_120, 3),
    Task("resnet", {"name": "resnet", "n": 8}, (32, 32, 3), 1_280, 3),
)
TARGETS = {
    ("sync", "mlp"): 1.2,
    ("sync", "mnist-cnn"): 1.2,
    ("sync", "resnet"): 1.2,
    ("async", "mlp"): 3.0,
    ("async", "resnet"): 1.2,
}
"""How many times as fast as TensorFlow the native engine is meant to be."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    task: str
    mode: str
    precision: str
    backend: str
    samples_per_s: float
    updates_per_s: float
    cpu_s_per_1000: float
    """Processor time of all processes per thousand samples."""
    memory_peak_bytes: int
    """Of the process that held the most."""
    startup_s: float
    first_step_s: float | None


Key = tuple[str, str, str]
"""Task, mode, precision: what is compared."""


def make_data(task: Task, folder: Path) -> Path:
    """Noise; the content does not matter for speed. A tenth of a file becomes its test part."""
    generator = np.random.default_rng(1)
    path = folder / f"{task.name}.npz"
    num_samples = -(-task.samples * 10 // 9)
    images = generator.integers(0, 256, (num_samples, *task.shape), dtype=np.uint8)
    np.savez(path, x=images, y=generator.integers(0, 10, num_samples))
    return path


def job_of(task: Task, data: Path, *, mode: str, precision: str, backend: str) -> dict[str, object]:
    """The same job for every contender, but for `backend`."""
    return {
        "name": f"{task.name}-{mode}-{backend}",
        "backend": backend,
        "model": task.model,
        "data": {"name": str(data), "validation": 0, "normalize": "unit"},
        "batch": {"per_worker": WORKER_BATCH},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "strategy": STRATEGIES[mode],
        "epochs": task.epochs,
        "workers": WORKERS,
        "threads": 1,
        "precision": "bf16" if (backend, precision) == (TENSORFLOW, "auto") else precision,
        "evaluate": "never",
        "checkpoint": {"every_epochs": None, "best": None},
    }


def run(job: dict[str, object], scratch: Path) -> RunDir:
    """Train by a job file, as a user would."""
    path = scratch / "job.yaml"
    path.write_text(json.dumps(job))
    command = [str(Path(sys.executable).with_name("phalanx")), "train", str(path), "--json"]
    places = {"PHALANX_RUNS": scratch / "runs", "PHALANX_CACHE": scratch / "cache"}
    environment = os.environ | {name: str(place) for name, place in places.items()}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{job['name']} failed:\n{done.stderr[-3000:]}")
    return RunDir(Path(json.loads(done.stdout)["run_dir"]))


def measure(run_dir: RunDir, *, task: str, mode: str, precision: str, backend: str) -> Measured:
    """What the records of a finished run say."""
    logs = {
        path.stem: list(read_events(path)) for path in (run_dir.path / "events").glob("*.jsonl")
    }
    epochs = sorted(
        (event for events in logs.values() for event in events if isinstance(event, Epoch)),
        key=lambda event: event.epoch,
    )
    first, last = epochs[0], epochs[-1]
    train_s = last.train_s - first.train_s
    summary = run_dir.read_summary()
    assert summary is not None
    used = totals(logs)
    samples = [e for events in logs.values() for e in events if isinstance(e, ProcessSample)]
    return Measured(
        task=task,
        mode=mode,
        precision=precision,
        backend=backend,
        samples_per_s=(last.samples - first.samples) / train_s,
        updates_per_s=(last.updates - first.updates) / train_s,
        cpu_s_per_1000=1000 * (used.cpu_s or 0.0) / last.samples,
        memory_peak_bytes=max(sample.memory_peak_bytes for sample in samples),
        startup_s=summary.startup_s,
        first_step_s=_first_step_s(logs.get("worker-0", [])),
    )


def _first_step_s(events: Iterable[object]) -> float | None:
    """From the start of a worker to the end of its first step."""
    started: Started | None = None
    for event in events:
        if isinstance(event, Started):
            started = event
        if isinstance(event, Step) and started is not None:
            return started.startup_s + event.mono_s - started.mono_s
    return None


def measure_all(
    tasks: Sequence[Task], modes: Sequence[str], rounds: int, *, save: Path | None
) -> list[Measured]:
    """Every contender once a round, in turn; saved after each, as a round takes minutes."""
    found: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        scratch = Path(folder)
        for task in tasks:
            data = make_data(task, scratch)
            cases = [
                (mode, precision, backend)
                for mode in modes
                for precision in _precisions()
                for backend in CONTENDERS[mode]
                if backend != TENSORFLOW or has_tensorflow()
            ]
            for number in range(rounds):
                for mode, precision, backend in cases:
                    job = job_of(task, data, mode=mode, precision=precision, backend=backend)
                    one = measure(
                        run(job, scratch),
                        task=task.name,
                        mode=mode,
                        precision=precision,
                        backend=backend,
                    )
                    found.append(one)
                    if save is not None:
                        save.write_text(json.dumps([asdict(each) for each in found]))
                    print(
                        f"round {number + 1}: {task.name} {mode} {precision} {backend}: "
                        f"{one.samples_per_s:.0f} samples/s",
                        file=sys.stderr,
                    )
    return found


def has_tensorflow() -> bool:
    """Whether it is installed; a look at the files does, importing takes seconds."""
    return find_spec("tensorflow") is not None


def _precisions() -> tuple[str, ...]:
    cpuinfo = Path("/proc/cpuinfo")
    has_bf16 = cpuinfo.exists() and "_bf16" in cpuinfo.read_text(encoding="utf-8")
    return ("fp32", "auto") if has_bf16 else ("fp32",)


def table(found: Sequence[Measured]) -> str:
    """Markdown: one row per contender, medians over rounds; ratios are native over the peer's."""
    heads = (
        "task", "mode", "precision", "backend", "samples/s", "updates/s", "native is",
        "CPU s / 1000 samples", "peak MB of a process", "start-up s", "first step s",
    )  # fmt: skip
    lines = [" | ".join(heads), " | ".join("---" if i < 4 else "--:" for i in range(len(heads)))]
    for task, mode, precision in dict.fromkeys((m.task, m.mode, m.precision) for m in found):
        for backend in CONTENDERS[mode]:
            runs = _runs(found, (task, mode, precision), backend)
            if not runs:
                continue  # not installed here
            first_steps = [one.first_step_s for one in runs if one.first_step_s is not None]
            cells = (
                task,
                mode,
                precision,
                backend,
                f"{_median(runs, lambda m: m.samples_per_s):,.0f}",
                f"{_median(runs, lambda m: m.updates_per_s):,.1f}",
                "" if backend == NATIVE else _ratio(found, (task, mode, precision), backend),
                f"{_median(runs, lambda m: m.cpu_s_per_1000):.2f}",
                f"{_median(runs, lambda m: m.memory_peak_bytes) / 1e6:,.0f}",
                f"{_median(runs, lambda m: m.startup_s):.1f}",
                f"{statistics.median(first_steps):.1f}" if first_steps else "",
            )
            lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def verdicts(found: Sequence[Measured]) -> list[str]:
    """What was aimed at, and whether it was reached."""
    lines = []
    for task, mode, precision in dict.fromkeys((m.task, m.mode, m.precision) for m in found):
        key = (task, mode, precision)
        theirs = _runs(found, key, TENSORFLOW)
        if (mode, task) in TARGETS and theirs:
            ratio, target = statistics.median(_ratios(found, key, TENSORFLOW)), TARGETS[mode, task]
            word = "reached" if ratio >= target else "missed"
            lines.append(f"{mode} {task} {precision}: {ratio:.2f} of {target:g} x: {word}")
        for peer in CONTENDERS[mode][1:]:
            other = _runs(found, key, peer)
            if not other:
                continue
            memory = _median(_runs(found, key, NATIVE), lambda m: m.memory_peak_bytes)
            word = "less" if memory < _median(other, lambda m: m.memory_peak_bytes) else "MORE"
            lines.append(f"{mode} {task} {precision}: peak memory {word} than {peer}'s")
    return lines


def _runs(found: Sequence[Measured], key: Key, backend: str) -> list[Measured]:
    return [m for m in found if (m.task, m.mode, m.precision) == key and m.backend == backend]


def _median(runs: Sequence[Measured], value: Callable[[Measured], float]) -> float:
    return statistics.median(value(one) for one in runs)


def _ratios(found: Sequence[Measured], key: Key, peer: str) -> list[float]:
    """Native over the peer's, round by round: updates for servers, samples otherwise."""
    # A measurement that was broken off has no peer for its last run.
    pairs = zip(_runs(found, key, NATIVE), _runs(found, key, peer), strict=False)
    return [ours.updates_per_s / theirs.updates_per_s for ours, theirs in pairs]


def _ratio(found: Sequence[Measured], key: Key, peer: str) -> str:
    ratios = _ratios(found, key, peer)
    return f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Measure, or read what was measured, and show."""
    parser = argparse.ArgumentParser(description="The native engine against DDP and TensorFlow")
    names = [task.name for task in TASKS]
    parser.add_argument("--task", nargs="+", choices=names, default=names)
    parser.add_argument("--mode", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender (default 3)")
    parser.add_argument("--save", type=Path, help="write what was measured to this file, as JSON")
    parser.add_argument("--show", nargs="+", type=Path, help="measure nothing: read saved files")
    options = parser.parse_args()
    if options.show:
        found = [Measured(**one) for path in options.show for one in json.loads(path.read_text())]
    else:
        if not has_tensorflow():
            print("without TensorFlow: pip install 'phalanx[tensorflow]'", file=sys.stderr)
        tasks = [task for task in TASKS if task.name in options.task]
        found = measure_all(tasks, options.mode, options.rounds, save=options.save)
    print(table(found))
    print("\n" + "\n".join(verdicts(found)))


if __name__ == "__main__":
    main()
