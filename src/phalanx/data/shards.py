"""Cut an epoch into steps and each step into the workers' rows. Pure.

Notation: n samples, N workers, B the global batch, s_r the share of worker r in a full batch (the
s_r add up to B), T_r the samples that worker r owns under the policy `file`.

`sample`  Step t is order[tB : (t+1)B], the last one shorter; worker r takes its contiguous slice.
`file`    Worker r owns whole files and takes s_r of its T_r samples per step until none are left.
          The epoch has max_r ceil(T_r / s_r) steps.
`off`     Worker r visits all samples in its own order and takes its share of each of the
          ceil(n / B) steps. Samples are *not* seen exactly once.

All workers have the same number of steps, some perhaps empty, and each computes alone how many
samples all of them have in a step. Called by `pipeline`, once per epoch. The policy `file` is in
`file_shards`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from typing_extensions import override

from phalanx.data.order import EpochOrder, Indices, share_sizes

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
    """A shard policy applied to one training part.

    Args:
        order: The epoch's order of samples.
        global_batch: B.
        num_workers: N.
        shares: Relative share of the global batch per worker; None: equal.
    """

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
            yield Cut(
                epoch=epoch,
                step=step,
                indices=order[offset + first : offset + last],
                global_count=count,
                global_offset=offset,
            )

    def cuts(self, epoch: int, units: Iterable[tuple[int, int]]) -> Iterator[Cut]:
        """Yield the requested parts of steps, each given as (step, part)."""
        order = self._order.permutation(epoch)
        for step, part in units:
            offset = step * self._global_batch
            count = min(self._global_batch, self._order.num_samples - offset)
            first, last = self._slice(count, part)
            yield Cut(
                epoch=epoch,
                step=step,
                indices=order[offset + first : offset + last],
                global_count=count,
                global_offset=offset,
            )

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
            yield Cut(
                epoch=epoch,
                step=step,
                indices=order[own : own + last - first],
                global_count=count,
                global_offset=offset,
            )


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
