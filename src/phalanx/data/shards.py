"""Cut an epoch into steps and each step into the workers' rows. Pure.

Notation: n samples, N workers, B the global batch, s_r the share of worker r in a full batch (the
s_r add up to B), T_r the samples that worker r owns under the policy `file`.

`sample`  Step t is order[tB : (t+1)B], the last one shorter; worker r takes its contiguous slice.
`file`    Worker r owns whole files and takes s_r of its T_r samples per step until none are left.
          The epoch has max_r ceil(T_r / s_r) steps.
`off`     Worker r visits all samples in its own order and takes its share of each of the
          ceil(n / B) steps. Samples are *not* seen exactly once.

All workers have the same number of steps, some perhaps empty, and each computes alone how many
samples all of them have in a step. Called by `pipeline`, once per epoch.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import numpy as np
from typing_extensions import override

from phalanx.data.order import EpochOrder, Indices, share_sizes
from phalanx.errors import SpecError
from phalanx.spec.epoch_quota import EpochQuota

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cut:
    """One worker's part of one step."""

    epoch: int
    step: int
    indices: Indices
    """Positions in the training part; may be empty."""
    global_count: int
    """Samples of all workers in this step."""
    global_offset: int
    """Samples of all workers in this epoch before this step."""
    worker: int = 0
    """Owner of these samples, where workers own samples."""


class Shards(ABC):
    """A shard policy applied to one training part; without shares, workers take equal parts."""

    def __init__(
        self,
        order: EpochOrder,
        *,
        global_batch: int,
        num_workers: int,
        shares: Sequence[float] | None = None,
    ) -> None:
        if global_batch < 1 or num_workers < 1:
            raise ValueError(f"batch {global_batch} and {num_workers} workers must be positive")
        self._order = order
        self._global_batch = global_batch
        self._num_workers = num_workers
        self._shares = shares

    @abstractmethod
    def steps(self, start_sample: int = 0) -> range:
        """Return the numbers of the steps from `start_sample` to the end; equal on all workers.

        After a change of batch in mid-epoch they count on from the steps done, rounded up.
        """

    @abstractmethod
    def batches(self, epoch: int, rank: int, *, start_sample: int = 0) -> Iterator[Cut]:
        """Yield worker `rank`'s part of each step, from `start_sample` samples into the epoch."""

    @abstractmethod
    def offset_of(self, step: int) -> int:
        """Count all workers' samples before this step of an epoch begun at its first sample."""

    def max_rows(self, rank: int) -> int:
        """Return an upper bound of the rows in any of the worker's cuts."""
        # A partial batch can round in favour of a worker that a full one rounds against.
        return self._full_sizes[rank] + 1

    @cached_property
    def _full_sizes(self) -> tuple[int, ...]:
        return self._sizes(self._global_batch)

    def _sizes(self, count: int) -> tuple[int, ...]:
        return share_sizes(count, self._num_workers, self._shares)


class SampleShards(Shards):
    """Shards that cut every global batch over the workers; any N and B continue at any sample."""

    @override
    def steps(self, start_sample: int = 0) -> range:
        first = ceil_div(start_sample, self._global_batch)
        left = max(0, self._order.num_samples - start_sample)
        return range(first, first + ceil_div(left, self._global_batch))

    @override
    def offset_of(self, step: int) -> int:
        return min(step * self._global_batch, self._order.num_samples)

    @override
    def batches(self, epoch: int, rank: int, *, start_sample: int = 0) -> Iterator[Cut]:
        order = self._order.permutation(epoch)
        for step, offset, count in self._spans(start_sample):
            first, last = self._slice(count, rank)
            yield Cut(epoch, step, order[offset + first : offset + last], count, offset)

    def cuts(self, epoch: int, units: Iterable[tuple[int, int]]) -> Iterator[Cut]:
        """Yield the requested parts of steps, each given as (step, part)."""
        order = self._order.permutation(epoch)
        for step, part in units:
            offset = step * self._global_batch
            count = min(self._global_batch, self._order.num_samples - offset)
            first, last = self._slice(count, part)
            yield Cut(epoch, step, order[offset + first : offset + last], count, offset)

    def _spans(self, start_sample: int) -> Iterator[tuple[int, int, int]]:
        """Yield (step, samples before it, samples in it)."""
        num_samples = self._order.num_samples
        offsets = range(start_sample, num_samples, self._global_batch)
        for step, offset in zip(self.steps(start_sample), offsets, strict=True):
            yield step, offset, min(self._global_batch, num_samples - offset)

    def _slice(self, count: int, rank: int) -> tuple[int, int]:
        sizes = self._full_sizes if count == self._global_batch else self._sizes(count)
        first = sum(sizes[:rank])
        return first, first + sizes[rank]


class OffShards(SampleShards):
    """Shards where every worker visits all samples, in its own order."""

    @override
    def batches(self, epoch: int, rank: int, *, start_sample: int = 0) -> Iterator[Cut]:
        order = self._order.permutation_of(epoch, rank)
        for step, offset, count in self._spans(start_sample):
            first, last = self._slice(count, rank)
            own = self._full_sizes[rank] * (offset // self._global_batch)
            yield Cut(epoch, step, order[own : own + last - first], count, offset)


class QuotaShards(Shards):
    """Shards where each worker takes its quota per step, from samples that are its own."""

    _quota: EpochQuota
    _fixed = ""
    """Why an epoch goes on only where a step begins, and what to do; ends the message."""

    @override
    def steps(self, start_sample: int = 0) -> range:
        first = self._quota.step_at(start_sample)
        if first is None:
            raise SpecError(self._fixed.format(sample=start_sample), start_sample=start_sample)
        return range(first, self._quota.num_steps)

    @override
    def offset_of(self, step: int) -> int:
        return self._quota.offset_of(step)

    @override
    def max_rows(self, rank: int) -> int:
        return self._quota.rows[rank]

    def _cut(self, order: Indices, epoch: int, step: int, worker: int) -> Cut:
        """Return a worker's next samples, in its order of them."""
        rows, offset = self._quota.rows[worker], self._quota.offset_of(step)
        return Cut(
            epoch=epoch,
            step=step,
            indices=order[step * rows : (step + 1) * rows],
            global_count=self._quota.offset_of(step + 1) - offset,
            global_offset=offset,
            worker=worker,
        )


class FileShards(QuotaShards):
    """Each worker owns whole files, which follow each other in the training part.

    A worker takes at least one sample per step, also where the global batch is smaller than N.
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
        totals = np.bincount(self._owners, weights=self._file_sizes, minlength=num_workers)
        sizes = tuple(int(total) for total in totals)
        rows = tuple(max(1, size) for size in self._full_sizes)
        num_steps = max(ceil_div(size, row) for size, row in zip(sizes, rows, strict=True))
        self._quota = EpochQuota(totals=sizes, rows=rows, num_steps=num_steps)
        self._fixed = (
            f"an epoch under 'shard: file' cannot continue at sample {{sample}} with "
            f"{num_workers} workers and a batch of {global_batch}; continue with the workers and "
            "the batch it began with, or use 'shard: sample'"
        )

    @override
    def batches(self, epoch: int, rank: int, *, start_sample: int = 0) -> Iterator[Cut]:
        order = self._order.permutation(epoch)
        owner_of_sample = np.repeat(self._owners, self._file_sizes)
        own = order[owner_of_sample[order] == rank]
        for step in self.steps(start_sample):
            yield self._cut(own, epoch, step, rank)


def choose_policy(
    policy: Literal["auto", "sample", "file", "off"],
    *,
    num_files: int,
    num_workers: int,
    shuffle: bool,
) -> Literal["sample", "file", "off"]:
    """Resolve `auto`: whole files only where their order may stay and each worker gets one."""
    if policy == "file" and num_files < num_workers:
        logger.warning(
            "shard: file with %d files leaves %d of %d workers without data",
            num_files,
            num_workers - num_files,
            num_workers,
        )
    if policy != "auto":
        return policy
    return "file" if not shuffle and num_workers > 1 and num_files >= num_workers else "sample"


def ceil_div(numerator: int, denominator: int) -> int:
    """Divide, rounding up."""
    return -(-numerator // denominator)


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
