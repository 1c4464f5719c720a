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


@dataclass(frozen=True)
class Share:
    """Whose samples a worker takes: as worker `rank` of `num_workers` would."""

    rank: int
    num_workers: int


def evaluate(
    replica: Learner, collective: Collective, part: Part, share: Share | None = None
) -> Measures:
    """Measure the replica; all workers call it together, after `settle`.

    Args:
        replica: What is measured.
        collective: The workers.
        part: The samples.
        share: Which of them this worker takes; None: its own, as one of the workers.
    """
    share = share or Share(collective.rank, collective.size)
    begin = time.perf_counter()
    loss_sum, num_correct, num_samples = 0.0, 0, 0
    batches = eval_batches(
        part, rank=share.rank, num_workers=share.num_workers, worker_batch=_WORKER_BATCH
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
