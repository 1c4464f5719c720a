"""Measuring a model on the validation or test part, shared out over all workers.

Counts are summed as whole numbers over workers, so an accuracy can never exceed 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Part, eval_batches
from phalanx.worker.learner import Learner

_WORKER_BATCH = 256


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy over a part, as means over its samples."""

    loss: float
    accuracy: float
    num_samples: int
    duration_s: float


def evaluate(replica: Learner, collective: Collective, part: Part) -> Measures:
    """Measure the replica; all workers call it together, after `settle`."""
    begin = time.perf_counter()
    loss_sum, num_correct, num_samples = 0.0, 0, 0
    batches = eval_batches(
        part, rank=collective.rank, num_workers=collective.size, worker_batch=_WORKER_BATCH
    )
    for batch in batches:
        loss, correct, count = replica.evaluate(batch)
        loss_sum += loss
        num_correct += correct
        num_samples += count
    return reduce_measures(
        collective, loss_sum, num_correct, num_samples, duration_s=time.perf_counter() - begin
    )


def reduce_measures(
    collective: Collective,
    loss_sum: float,
    num_correct: int,
    num_samples: int,
    *,
    duration_s: float,
) -> Measures:
    """Means over all workers from each worker's sums."""
    sums = torch.tensor([loss_sum, num_correct, num_samples], dtype=torch.float64)
    collective.all_reduce(sums)
    total = max(1.0, sums[2].item())
    return Measures(
        loss=sums[0].item() / total,
        accuracy=sums[1].item() / total,
        num_samples=int(sums[2].item()),
        duration_s=duration_s,
    )
