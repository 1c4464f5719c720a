"""Cut epochs by the shard policy `file`. Notation as in `shards`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
from typing_extensions import override

from phalanx.data.order import EpochOrder, Indices
from phalanx.data.shards import Cut, Shards, ceil_div
from phalanx.errors import SpecError
from phalanx.spec.epoch_quota import EpochQuota


class FileShards(Shards):
    """Each worker owns whole files.

    Args:
        order: The epoch's order of samples.
        file_sizes: Samples per file; the files follow each other in the training part.
        global_batch: B; a worker takes at least one sample per step, also where B < N.
        num_workers: N.
        shares: Relative share of the global batch, and of the files, per worker.
    """

    def __init__(
        self,
        order: EpochOrder,
        *,
        file_sizes: Sequence[int],
        global_batch: int,
        num_workers: int,
        shares: Sequence[float] | None = None,
    ) -> None:
        super().__init__(order, global_batch=global_batch, num_workers=num_workers, shares=shares)
        if sum(file_sizes) != order.num_samples:
            raise ValueError(f"files of {sum(file_sizes)} samples for {order.num_samples}")
        self._file_sizes = tuple(file_sizes)
        self._owners = assign_files(file_sizes, num_workers, shares)

    @override
    def steps(self, start_sample: int = 0) -> range:
        first = self._quota.step_at(start_sample)
        if first is None:
            raise SpecError(
                f"an epoch under 'shard: file' cannot continue at sample {start_sample} with "
                f"{self._num_workers} workers and a batch of {self._global_batch}; continue with "
                "the workers and the batch it began with, or use 'shard: sample'",
                start_sample=start_sample,
            )
        return range(first, self._quota.num_steps)

    @override
    def offset_of(self, step: int) -> int:
        return self._quota.offset_of(step)

    @override
    def max_rows(self, rank: int) -> int:
        return self._quota.rows[rank]

    @override
    def batches(self, epoch: int, rank: int, *, start_sample: int = 0) -> Iterator[Cut]:
        order = self._order.permutation(epoch)
        owner_of_sample = np.repeat(self._owners, self._file_sizes)
        own = order[owner_of_sample[order] == rank]
        size = self._quota.rows[rank]
        for step in self.steps(start_sample):
            offset = self.offset_of(step)
            yield Cut(
                epoch=epoch,
                step=step,
                indices=own[step * size : (step + 1) * size],
                global_count=self.offset_of(step + 1) - offset,
                global_offset=offset,
            )

    @cached_property
    def _quota(self) -> EpochQuota:
        totals = np.bincount(self._owners, weights=self._file_sizes, minlength=self._num_workers)
        sizes = [int(total) for total in totals]
        rows = tuple(max(1, size) for size in self._full_sizes)
        num_steps = max(ceil_div(size, row) for size, row in zip(sizes, rows, strict=True))
        return EpochQuota(totals=tuple(sizes), rows=rows, num_steps=num_steps)


def assign_files(
    file_sizes: Sequence[int], num_workers: int, shares: Sequence[float] | None = None
) -> Indices:
    """Return the owner of each file: the largest files first, each to the least loaded worker."""
    weights = shares if shares is not None else (1.0,) * num_workers
    loads = [0] * num_workers
    owners = np.zeros(len(file_sizes), dtype=np.int64)
    for file in sorted(range(len(file_sizes)), key=lambda file: (-file_sizes[file], file)):
        size = file_sizes[file]
        owner = min(range(num_workers), key=lambda r: ((loads[r] + size) / weights[r], r))
        loads[owner] += size
        owners[file] = owner
    return owners


def file_sizes_of(rows: Indices, stored_sizes: Sequence[int]) -> tuple[int, ...]:
    """Count the samples per file when only some rows (sorted) of the stored ones are used."""
    ends = np.searchsorted(rows, list(accumulate(stored_sizes)))
    sizes = np.diff(ends, prepend=0)
    return tuple(int(size) for size in sizes if size)
