"""What measuring costs: the speed of a worker with everything measured against nothing measured.

One worker on one core trains on a batch in memory, so that there is no second core to hide the
measuring on. Rounds alternate between "measured" (an event for every step, written to disk; samples
of process and machine every second; heartbeats and clock readings over a real control channel to
another process) and "bare" (the training step alone). Within each pair of rounds the order changes,
and the median of the ratios counts. The small network is the worst case: its steps take a
millisecond or two. The target is less than 2 % of samples per second.

On a busy machine that ratio is noise. So the processor time is accounted for as well: the share
that the process spent on anything but its training steps, in all of its threads, with measuring
minus without. On one core the two figures mean the same.

    python benchmarks/observe.py [--rounds 15] [--seconds 3] [--json]
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
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from phalanx.comm.solo import SoloCollective
from phalanx.data.pipeline import Batch
from phalanx.engine.replica import Replica
from phalanx.model.catalogue import build_model
from phalanx.observe.sampler import Sampler
from phalanx.records.events import Clock
from phalanx.records.log import EventLog
from phalanx.spec.lockstep import SingleSpec
from phalanx.spec.loss import LossSpec
from phalanx.spec.model import MlpSpec, MnistCnnSpec, ModelSpec
from phalanx.spec.observe import ObserveSpec
from phalanx.spec.optimize import SgdSpec
from phalanx.strategy.base import StepFacts, build_strategy
from phalanx.wire.control import ControlServer
from phalanx.wire.control_client import ControlClient
from phalanx.wire.keys import KeyPair
from phalanx.worker.metrics import WorkerMetrics, record_step

BATCH = 64
SHAPE = (28, 28, 1)
LR = 0.01
TARGET = 0.02


class Case(NamedTuple):
    """A network."""

    name: str
    model: ModelSpec


CASES = (Case("mlp", MlpSpec()), Case("mnist-cnn", MnistCnnSpec()))


class Round(NamedTuple):
    """What one round came to."""

    samples_per_s: float
    other_share: float
    """Of the processor time, spent on anything but training steps."""


class Rounds(NamedTuple):
    """All of them."""

    measured: list[Round]
    bare: list[Round]

    @property
    def cost(self) -> float:
        """Share of samples/s that measuring takes."""
        pairs = zip(self.measured, self.bare, strict=True)
        return 1 - statistics.median(a.samples_per_s / b.samples_per_s for a, b in pairs)

    @property
    def accounted(self) -> float:
        """Share of the processor time that measuring takes."""
        pairs = zip(self.measured, self.bare, strict=True)
        return statistics.median(a.other_share - b.other_share for a, b in pairs)


class Worker:
    """Trains one network on one batch, and knows the processor time that its steps took."""

    def __init__(self, case: Case) -> None:
        replica = Replica(
            build_model(case.model, input_shape=SHAPE, num_classes=10, seed=1),
            loss=LossSpec(),
            optimizer=SgdSpec(lr=LR),
            precision="fp32",
            rank=0,
        )
        self._strategy = build_strategy(SingleSpec())
        self._strategy.attach(replica, SoloCollective())
        self._batch = make_batch()

    def run(self, seconds: float, note: Callable[[int, StepFacts], None]) -> Round:
        """Step for a while, and tell of each step."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        step_cpu, steps = 0.0, 0
        while (passed := time.perf_counter() - begin) < seconds:
            before = time.thread_time()
            facts = self._strategy.step(self._batch, lr=LR, step_index=steps)
            step_cpu += time.thread_time() - before
            note(steps, facts)
            steps += 1
        spent = time.process_time() - begin_cpu
        return Round(steps * BATCH / passed, 1 - step_cpu / spent)


def make_batch() -> Batch:
    """A batch of noise; the content does not matter for speed."""
    generator = np.random.default_rng(1)
    return Batch(
        inputs=generator.standard_normal((BATCH, *SHAPE), dtype=np.float32),
        targets=generator.integers(0, 10, BATCH),
        indices=np.arange(BATCH),
        global_count=BATCH,
        global_offset=0,
        epoch=0,
        step=0,
    )


class Channel(NamedTuple):
    """How the worker reaches the controller."""

    address: str
    server_key: str
    keys: KeyPair


def run_measured(worker: Worker, seconds: float, *, folder: Path, channel: Channel) -> Round:
    """With everything that a worker of a real run measures."""
    tally, log = WorkerMetrics(), EventLog(folder / "worker-0.jsonl")
    control = ControlClient(
        channel.address,
        server_key=channel.server_key,
        keys=channel.keys,
        progress=tally.progress,
        on_stop=lambda reason: None,
        on_clock=lambda reading: log.record(
            Clock(offset_s=reading.offset_s, error_s=reading.error_s)
        ),
    )

    def note(step: int, facts: StepFacts) -> None:
        record_step(log, tally, facts, epoch=0, step=step, lr=LR, input_s=0.0, sent_bytes=0)

    with control, log, Sampler(ObserveSpec(), log.record, watch_host=True) as sampler:
        sampler.mark("begin")
        result = worker.run(seconds, note)
        sampler.mark("end")
    return result


@contextmanager
def controller() -> Iterator[Channel]:
    """A controller in a process of its own, which takes heartbeats and answers for the time."""
    with subprocess.Popen(
        [sys.executable, __file__, "--controller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address, server_key, public, secret = process.stdout.readline().split()
        yield Channel(address, server_key, KeyPair(public=public, secret=secret))
        process.stdin.close()


def serve() -> None:
    """The body of that process: until its standard input ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    with ControlServer() as server:
        keys = server.admit("worker-0")
        print(server.address, server.public_key, keys.public, keys.secret, flush=True)
        while not ended.is_set():
            server.receive(0.1)


def measure(case: Case, channel: Channel, *, rounds: int, seconds: float) -> Rounds:
    """Alternate, with a changing order, after one round of each to warm up."""
    worker = Worker(case)
    found = Rounds([], [])
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, rounds):
            for which in ("measured", "bare") if number % 2 else ("bare", "measured"):
                if which == "bare":
                    result = worker.run(seconds, lambda step, facts: None)
                else:
                    place = Path(folder) / str(number)
                    result = run_measured(worker, seconds, folder=place, channel=channel)
                if number >= 0:
                    getattr(found, which).append(result)
    return found


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="the cost of measuring")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of rounds (default 15)")
    parser.add_argument("--seconds", type=float, default=3.0, help="per round (default 3)")
    parser.add_argument("--json", action="store_true", help="print the shares as JSON at the end")
    parser.add_argument("--controller", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.controller:
        serve()
        return
    costs = {}
    with controller() as channel:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        for case in CASES:
            found = measure(case, channel, rounds=options.rounds, seconds=options.seconds)
            costs[case.name] = {"samples_per_s": found.cost, "cpu": found.accounted}
            print(f"\n{case.name}: 1 worker on 1 core, {BATCH} samples per step")
            for name, values in found._asdict().items():
                rates = [one.samples_per_s for one in values]
                mid = statistics.median(rates)
                print(f"  {name:<10} {mid:9.1f} samples/s  ({min(rates):.1f} to {max(rates):.1f})")
            print(
                f"  measuring costs {found.cost:.2%} of samples/s; "
                f"{found.accounted:.2%} of the processor time (allowed: {TARGET:.0%})"
            )
    if options.json:
        print(json.dumps(costs))


if __name__ == "__main__":
    main()
