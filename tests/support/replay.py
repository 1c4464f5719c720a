"""Replay the ledger of an elastic run in one process: the same groups by plan, without a loss.

The oracle of its bits: each member's part of a batch is computed one after the other, the gradients
are added in the order of ranks, and the sum is applied once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch

from phalanx.data.pipeline import Batch, Dataset, open_dataset, train_batches
from phalanx.records.events import Grouped
from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.worker.rate import Rate
from phalanx.worker.replica import build_replica


def ledger_of(run: RunDir) -> list[Grouped]:
    """The groups that trained, in their order; one that made no step leaves no trace."""
    found = chain.from_iterable(read_logs(run.path / "events", Grouped).values())
    groups = sorted(
        (event for event in found if isinstance(event, Grouped)), key=lambda one: one.generation
    )
    later = [*groups[1:], None]
    return [
        one
        for one, after in zip(groups, later, strict=True)
        if after is None or one.updates < after.updates
    ]


class Replay:
    """A run with the membership of a ledger, in one process.

    Args:
        job: Of the run.
        data_root: Where its data are.
        cache_root: Where decoded data are kept.
    """

    def __init__(self, job: JobSpec, data_root: Path, cache_root: Path) -> None:
        self._job = job
        # As each worker: sums of matrix products depend on the number of threads.
        torch.set_num_threads(1)
        self._dataset: Dataset = open_dataset(job.data, data_root=data_root, cache_root=cache_root)
        self._replica = build_replica(job, self._dataset, rank=0, precision="fp32")
        self._rate = Rate(job, samples_per_epoch=self._dataset.epoch_samples)
        self.seen: list[list[int]] = []
        """Samples of each epoch, in the order in which they were trained."""

    def run(self, ledger: list[Grouped]) -> str:
        """Train to the end of the job; returns the digest of the parameters."""
        ends = [one.updates for one in ledger[1:]] + [1 << 60]
        updates = samples = 0
        for group, end in zip(ledger, ends, strict=True):
            assert group.updates == updates
            epoch, at = group.epoch, group.epoch_samples
            while epoch < self._job.epochs and updates < end:
                for parts in self._steps(group, epoch, at):
                    self._step(parts, samples, updates)
                    self._see(epoch, parts)
                    samples, at = samples + parts[0].global_count, at + parts[0].global_count
                    updates += 1
                    if updates == end:
                        break
                if at >= self._dataset.epoch_samples:
                    epoch, at = epoch + 1, 0
        return hashlib.sha256(self._replica.parameters.numpy().data).hexdigest()

    def _steps(self, group: Grouped, epoch: int, at: int) -> Iterator[list[Batch]]:
        shares = [float(name not in group.waiting) for name in group.members]
        streams = [
            train_batches(
                self._dataset,
                spec=self._job.data,
                seed=self._job.seed,
                epoch=epoch,
                global_batch=self._job.global_batch,
                rank=rank,
                num_workers=len(shares),
                shares=shares if group.waiting else None,
                start_sample=at,
            )
            for rank in range(len(shares))
        ]
        try:
            for parts in zip(*streams, strict=True):
                yield [one.copy() for one in parts]
        finally:
            for stream in streams:
                stream.close()

    def _step(self, parts: list[Batch], samples: int, updates: int) -> None:
        total: torch.Tensor | None = None
        for part in parts:
            self._replica.forward_backward(part, step=updates)
            own = self._replica.gradients.clone()
            total = own if total is None else total.add_(own)
        assert total is not None
        self._replica.gradients.copy_(total)
        self._replica.apply(self._rate(samples))

    def _see(self, epoch: int, parts: list[Batch]) -> None:
        while len(self.seen) <= epoch:
            self.seen.append([])
        for part in parts:
            self.seen[epoch].extend(part.indices.tolist())
