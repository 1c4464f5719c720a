"""Measure inference latency and throughput of the trained network, in the run's layout.

Latency: requests one at a time; in a split run from the barrier of all workers until the worker
with the last part has the output, under data parallelism per worker. Throughput: requests back to
back, between two barriers of all workers.
"""

from __future__ import annotations

import statistics
import time
from itertools import islice

import torch

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch, Dataset, eval_batches
from phalanx.spec.observe import InferSpec
from phalanx.wire.messages import InferenceFacts
from phalanx.worker.evaluate import EvaluationShare
from phalanx.worker.trainable import Trainable

_WARM_UP = 3


def measure_inference(
    learner: Trainable,
    dataset: Dataset,
    collective: Collective,
    *,
    spec: InferSpec,
    share: EvaluationShare,
) -> InferenceFacts | None:
    """Measure latency and throughput; all workers call it together. None: there are no samples."""
    part = dataset.test if dataset.test.num_samples > 0 else dataset.validation
    if part.num_samples < spec.batch * share.num_workers:
        return None
    with eval_batches(
        part, rank=share.rank, num_workers=share.num_workers, worker_batch=spec.batch
    ) as stream:
        batches = [batch.copy() for batch in islice(stream, spec.requests)]
    together = share.num_workers == 1 and collective.size > 1
    for number in range(_WARM_UP):
        learner.evaluate(_at(batches, number))
    latencies = [
        _latency(learner, _at(batches, number), collective, together=together)
        for number in range(spec.requests)
    ]
    answered, elapsed_s = _row(learner, batches, collective, spec.requests)
    rows = collective.all_gather(torch.tensor(latencies, dtype=torch.float64))
    known = sorted(value for row in rows for value in row.tolist() if value >= 0)
    return InferenceFacts(
        layout="split" if together else "data_parallel" if collective.size > 1 else "single",
        batch=spec.batch,
        requests=len(known),
        latency_p50_s=statistics.median(known),
        latency_p95_s=known[min(len(known) - 1, int(0.95 * len(known)))],
        samples_per_s=answered / elapsed_s,
    )


def _at(batches: list[Batch], number: int) -> Batch:
    return batches[number % len(batches)]


def _latency(learner: Trainable, batch: Batch, collective: Collective, *, together: bool) -> float:
    """Return the seconds until the output is here; -1: it is on another worker."""
    if together:
        collective.all_reduce(torch.zeros(1))
    begin = time.perf_counter()
    found = learner.evaluate(batch)
    return time.perf_counter() - begin if found.num_samples else -1.0


def _row(
    learner: Trainable, batches: list[Batch], collective: Collective, requests: int
) -> tuple[float, float]:
    """Return the samples processed by all workers, and the seconds that took."""
    collective.all_reduce(torch.zeros(1))
    begin = time.perf_counter()
    answered = sum(learner.evaluate(_at(batches, n)).num_samples for n in range(requests))
    total = torch.tensor([float(answered)], dtype=torch.float64)
    collective.all_reduce(total)
    return float(total.item()), time.perf_counter() - begin
