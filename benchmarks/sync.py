"""Our synchronous all-reduce against plain DistributedDataParallel: two workers, one thread each.

Both train the same network on the same batches, already in memory, in the same two processes that
torchrun started: rounds alternate (ours, DDP, no exchange, ...), so noise hits all alike, and
medians over rounds count. "No exchange" is our step without communication, the limit that no
synchronous strategy can pass. DDP is written as its documentation shows it: default layout,
default buckets, torch.optim.SGD with momentum. Where the CPU has bf16, `precision: auto` is
measured too.

    python benchmarks/sync.py [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm.gloo import GlooCollective
from phalanx.data.pipeline import Batch
from phalanx.engine.precision import Precision, cpu_has_bf16
from phalanx.engine.replica import Replica
from phalanx.model.catalogue import build_model
from phalanx.spec.lockstep import AllreduceSpec, SingleSpec
from phalanx.spec.loss import LossSpec
from phalanx.spec.model import MnistCnnSpec, ModelSpec, ResnetSpec
from phalanx.spec.optimize import SgdSpec
from phalanx.strategy.base import Strategy, build_strategy

WORKERS = 2
WORKER_BATCH = 64
LR, MOMENTUM = 0.01, 0.9


class Case(NamedTuple):
    """A network, its input, and how many steps make a round of about a second."""

    name: str
    model: ModelSpec
    shape: tuple[int, int, int]
    steps: int


CASES = (
    Case("mnist-cnn", MnistCnnSpec(), (28, 28, 1), 15),
    Case("resnet n=8", ResnetSpec(n=8), (32, 32, 3), 4),
)
Step = Callable[[int], object]


def make_batch(case: Case, rank: int) -> Batch:
    """This rank's half of a global batch of noise; the content does not matter for speed."""
    generator = np.random.default_rng(rank)
    return Batch(
        inputs=generator.standard_normal((WORKER_BATCH, *case.shape), dtype=np.float32),
        targets=generator.integers(0, 10, WORKER_BATCH),
        indices=np.arange(WORKER_BATCH),
        global_count=WORKER_BATCH * WORKERS,
        global_offset=0,
        epoch=0,
        step=0,
    )


def our_step(
    case: Case, batch: Batch, group: GlooCollective, *, exchange: bool, precision: Precision
) -> Step:
    """One step of a Phalanx worker, with or without its exchange."""
    replica = Replica(
        build_model(case.model, input_shape=case.shape, num_classes=10, seed=1),
        loss=LossSpec(),
        optimizer=SgdSpec(lr=LR, momentum=MOMENTUM),
        precision=precision,
        rank=group.rank,
    )
    strategy: Strategy = build_strategy(AllreduceSpec() if exchange else SingleSpec())
    strategy.attach(replica, group)
    return lambda step: strategy.step(batch, lr=LR, step_index=step)


def ddp_step(case: Case, batch: Batch) -> Step:
    """One step of plain DDP."""
    model = build_model(case.model, input_shape=case.shape, num_classes=10, seed=1)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=LR, momentum=MOMENTUM)
    loss_function = nn.CrossEntropyLoss()
    inputs = torch.from_numpy(np.ascontiguousarray(batch.inputs.transpose(0, 3, 1, 2)))
    targets = torch.from_numpy(batch.targets)

    def step(_: int) -> float:
        optimizer.zero_grad()
        outputs = wrapped(inputs)
        loss = loss_function(outputs, targets)
        loss.backward()
        optimizer.step()
        # Our step counts loss and hits as every training loop does; so must this one.
        return loss.item() + float((outputs.argmax(1) == targets).sum())

    return step


def measure(case: Case, group: GlooCollective, rounds: int) -> dict[str, list[float]]:
    """Samples per second of each contender in every round."""
    batch = make_batch(case, group.rank)
    contenders: dict[str, Step] = {
        "phalanx": our_step(case, batch, group, exchange=True, precision="fp32"),
        "ddp": ddp_step(case, batch),
        "no exchange": our_step(case, batch, group, exchange=False, precision="fp32"),
    }
    if cpu_has_bf16():
        contenders["phalanx auto (bf16)"] = our_step(
            case, batch, group, exchange=True, precision="bf16"
        )
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_index in range(-1, rounds):
        for name, step in contenders.items():
            dist.barrier()
            begin = time.perf_counter()
            for index in range(case.steps):
                step(index)
            dist.barrier()
            elapsed = time.perf_counter() - begin
            if round_index >= 0:  # the first round warms up
                speeds[name].append(case.steps * WORKER_BATCH * WORKERS / elapsed)
    return speeds


def run_rank(rounds: int) -> None:
    """The body of one torchrun process."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo")
    store = dist.PrefixStore("phalanx/", dist.distributed_c10d._get_default_store())
    group = GlooCollective(store, rank=rank, size=WORKERS, host="127.0.0.1", deadline_s=60.0)
    for case in CASES:
        speeds = measure(case, group, rounds)
        if rank == 0:
            print(json.dumps({"case": case.name, "speeds": speeds}), flush=True)
    group.close()
    dist.destroy_process_group()


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over rounds of the ratio within each round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def show(case: str, speeds: dict[str, list[float]]) -> dict[str, float]:
    """Print one table; returns the ratios."""
    print(f"\n{case}: {WORKERS} workers x 1 thread, {WORKER_BATCH} samples each, fp32")
    for name, values in speeds.items():
        low, mid, high = min(values), statistics.median(values), max(values)
        against = ratio(values, speeds["ddp"])
        print(f"  {name:<20} {mid:9.1f} samples/s  ({low:.1f} to {high:.1f})  {against:5.2f} x DDP")
    limit = ratio(speeds["phalanx"], speeds["no exchange"])
    print(f"  phalanx reaches {limit:.0%} of the limit without exchange, ", end="")
    print(f"DDP {ratio(speeds['ddp'], speeds['no exchange']):.0%}")
    return {"vs_ddp": ratio(speeds["phalanx"], speeds["ddp"]), "of_limit": limit}


def main() -> None:
    """Start the ranks with torchrun, collect and show."""
    parser = argparse.ArgumentParser(description="Phalanx all-reduce against plain DDP")
    parser.add_argument("--rounds", type=int, default=9, help="rounds per contender (default 9)")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON at the end")
    parser.add_argument("--rank-body", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_body:
        run_rank(options.rounds)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={WORKERS}", __file__, "--rank-body"]
    command += [f"--rounds={options.rounds}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800, check=True
    )
    ratios = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            ratios[found["case"]] = show(found["case"], found["speeds"])
    if not cpu_has_bf16():
        print("\nprecision auto: this CPU has no bf16 instructions, so auto stays at fp32")
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()
