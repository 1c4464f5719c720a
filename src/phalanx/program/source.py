"""Read a script's data: draw its global batches in a fixed order, and cut this worker's rows.

The order is a function of seed and epoch alone, so every worker draws the same batches, any number
of workers uses every sample of an epoch once, and a resumed run goes on at the same sample without
anything of the loader being saved.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from phalanx.data.order import share_sizes
from phalanx.engine.rng import draw_seed
from phalanx.errors import DataError
from phalanx.program.passes import Passes, begin_epoch
from phalanx.program.rows import count_rows, take_rows
from phalanx.spec.job import JobSpec

_MASK32 = 2**32 - 1
STAND_IN_ROWS = 2
"""What a worker without a sample computes, for nothing; batch norm refuses a single row."""
# Enough to tell two orders apart.
_COMPARED_BATCHES = 64


@dataclass(frozen=True)
class BatchCut:
    """The rows of each global batch that a worker takes."""

    rank: int = 0
    size: int = 1
    shares: Sequence[float] | None = None
    part: float = 1.0
    """Part of each batch that is used at all; less than 1 where only speed is measured."""

    @classmethod
    def of(cls, job: JobSpec, rank: int) -> BatchCut:
        """Return the cut of one worker of a job, completed by its script or not."""
        program = job.program
        if program is None:
            return cls(rank, job.workers, job.batch.shares)
        part = program.trial.part if program.trial is not None else 1.0
        return cls(rank, job.workers, job.batch.shares or program.shares, part)

    def bounds(self, count: int) -> tuple[int, int]:
        """Return first and last row (excluded) of this worker in a batch of so many rows.

        A server, which runs the script up to its loop, has a rank behind the workers' and no row.
        """
        if self.rank >= self.size:
            return count, count
        sizes = share_sizes(self.used(count, self.size), self.size, self.shares)
        start = sum(sizes[: self.rank])
        return start, start + sizes[self.rank]

    def used(self, count: int, num_workers: int) -> int:
        """Return how many rows of a batch its workers compute."""
        # Two each, where there are as many: batch norm refuses a single row.
        return max(min(count, 2 * num_workers), round(self.part * count))


@dataclass(frozen=True)
class MicroBatch:
    """This worker's rows of one batch of the loader."""

    payload: object
    """What the script gets. Never empty: a worker without rows gets one that counts nothing."""
    num_rows: int
    global_rows: int


class BatchSource(ABC):
    """A script's training data, in batches.

    Attributes:
        batch_size: Rows of a usual batch, over all workers.
        num_batches: Batches of one pass of the script's loop.
        num_samples: Samples of one pass.
        counts_rows: Whether a batch counts as many samples as it has rows; a stream's all count as
            `batch_size`, since its rows are not known in advance.
        is_even: Whether every batch but the last of a pass is known to have `batch_size` rows.
    """

    counts_rows = True
    is_even = False

    batch_size: int
    num_batches: int
    num_samples: int

    @abstractmethod
    def digest(self, seed: int) -> str:
        """Identify the order of the first batches, to compare workers by."""

    @abstractmethod
    def open(
        self, epoch: int, *, cut: BatchCut, seed: int, start_sample: int
    ) -> Iterator[MicroBatch]:
        """Yield the batches of one pass from a sample on."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python, and restore them afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    seed_all(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 (the user's code draws from it)
        random.setstate(states[2])


def seed_all(seed: int) -> None:
    """Seed the generators that a user's code may draw from."""
    torch.default_generator.manual_seed(seed & (2**63 - 1))
    np.random.seed(seed & _MASK32)  # noqa: NPY002 (the user's code draws from it)
    random.seed(seed)


class IndexedSource(BatchSource):
    """A `DataLoader` over samples that have numbers; its own samplers decide the order.

    Args:
        loader: Read for its data set, samplers and settings; never iterated itself.
        num_batches: Of one pass, over as many passes of the loader as it takes; None: one.
    """

    def __init__(self, loader: DataLoader[Any], num_batches: int | None) -> None:
        self._loader = loader
        first = self._draw(0, seed=0)
        if not first:
            raise DataError("the loader given to session.data() has no batch")
        self._per_pass = len(first)
        self.batch_size = loader.batch_size or max(map(len, first))
        self.num_batches = num_batches or self._per_pass
        ends = first[:-1] if self.num_batches <= self._per_pass else first
        self.is_even = all(len(one) == self.batch_size for one in ends)
        whole, rest = divmod(self.num_batches, self._per_pass)
        in_pass = sum(map(len, first))
        self.num_samples = whole * in_pass + sum(len(one) for one in first[:rest])

    @override
    def digest(self, seed: int) -> str:
        drawn = self._draw(0, seed=seed)[:_COMPARED_BATCHES]
        return hashlib.sha256(repr((drawn, self.num_samples)).encode()).hexdigest()[:16]

    @override
    def open(
        self, epoch: int, *, cut: BatchCut, seed: int, start_sample: int
    ) -> Iterator[MicroBatch]:
        passes = -(-self.num_batches // self._per_pass)
        left, skipped = self.num_batches, 0
        for number in range(epoch * passes, (epoch + 1) * passes):
            drawn = self._draw(number, seed=seed)[:left]
            left -= len(drawn)
            first = 0
            while first < len(drawn) and skipped < start_sample:
                skipped += len(drawn[first])
                first += 1
            yield from self._load(drawn[first:], number, cut=cut, seed=seed)

    def numbered(self, epoch: int, *, seed: int) -> list[tuple[int, list[int]]]:
        """Return the samples of every batch of an epoch, each with the number of its pass."""
        passes = -(-self.num_batches // self._per_pass)
        numbers = range(epoch * passes, (epoch + 1) * passes)
        drawn = ((number, batch) for number in numbers for batch in self._draw(number, seed=seed))
        return list(islice(drawn, self.num_batches))

    def fetch(self, samples: Sequence[int], number: int, *, seed: int) -> object:
        """Read samples of a pass into one batch, in this process."""
        dataset: Any = _SeededDataset.over(self._loader.dataset, draw_seed(seed, number, 1))
        return self._loader.collate_fn([dataset[one] for one in samples])

    def _draw(self, number: int, *, seed: int) -> list[list[int]]:
        """Draw one pass of the loader: the samples of each global batch."""
        loader = self._loader
        key = draw_seed(seed, number, 0)
        begin_epoch(loader, number)
        for owner in (loader, loader.sampler, loader.batch_sampler):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(key & (2**63 - 1))
        with seeded(key):
            return [list(batch) for batch in cast(Iterable[Any], loader.batch_sampler)]

    def _load(
        self, batches: Sequence[list[int]], number: int, *, cut: BatchCut, seed: int
    ) -> Iterator[MicroBatch]:
        loader = self._loader
        counts: deque[tuple[int, int]] = deque()

        def rows() -> Iterator[list[int]]:
            for batch in batches:
                start, stop = cut.bounds(len(batch))
                counts.append((stop - start, len(batch)))
                # A worker without a row computes some that count nothing.
                yield batch[start:stop] or batch[:STAND_IN_ROWS]

        own = DataLoader(
            _SeededDataset.over(loader.dataset, draw_seed(seed, number, 1)),
            batch_sampler=_Rows(rows),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            timeout=loader.timeout,
        )
        for payload in own:
            num_rows, global_rows = counts.popleft()
            yield MicroBatch(payload, num_rows, global_rows)


@dataclass(frozen=True)
class _Rows:
    """An iterable that a DataLoader takes for a batch sampler."""

    make: Callable[[], Iterator[list[int]]]

    def __iter__(self) -> Iterator[list[int]]:
        return self.make()


@dataclass(frozen=True)
class _SeededDataset(Dataset[Any]):
    """Seed what a sample draws, by its number: the same augmentation on any worker."""

    dataset: Any
    key: int

    @classmethod
    def over(cls, dataset: Dataset[Any], key: int) -> Dataset[Any]:
        """Wrap a data set, unless its samples are known to draw nothing."""
        return dataset if isinstance(dataset, TensorDataset) else cls(dataset, key)

    def __getitem__(self, index: Any) -> Any:
        number = index if isinstance(index, int) else hash(index) & _MASK32
        seed_all(draw_seed(self.key, number, 2))
        return self.dataset[index]


class StreamSource(BatchSource):
    """Batches that come one after another: every worker reads all of them, and takes its rows.

    Args:
        passes: What the script gave.
        num_batches: Of one pass of the script's loop; shorter streams are read again.
    """

    counts_rows = False

    def __init__(self, passes: Passes, num_batches: int) -> None:
        self._passes = passes
        self.batch_size = passes.batch_size
        self.num_batches = num_batches
        self.num_samples = num_batches * self.batch_size

    @override
    def digest(self, seed: int) -> str:
        return f"{self.batch_size}x{self.num_batches}"

    @override
    def open(
        self, epoch: int, *, cut: BatchCut, seed: int, start_sample: int
    ) -> Iterator[MicroBatch]:
        skip = start_sample // self.batch_size
        drawn = islice(self._endless(epoch, seed), self.num_batches)
        for number, batch in enumerate(drawn):
            if number < skip:
                continue
            count = count_rows(batch)
            start, stop = cut.bounds(count)
            own = (start, stop) if stop > start else (0, min(count, STAND_IN_ROWS))
            yield MicroBatch(take_rows(batch, *own), stop - start, count)

    def _endless(self, epoch: int, seed: int) -> Iterator[object]:
        for number in range(1 << 31):
            found = False
            # Not restored: a stream draws while it is read.
            seed_all(draw_seed(draw_seed(seed, epoch, number), 0, 0))
            for batch in self._passes.begin():
                found = True
                yield batch
            if not found or not self._passes.restarts:
                raise DataError(
                    "the stream given to session.data() has ended before the script's loop; give "
                    "fewer 'steps', or something that can be read again, such as a function"
                )


def open_source(source: object, *, steps: int | None, accumulate: int) -> BatchSource:
    """Make a source of what the user gave to `session.data`, the same for all workers.

    Raises:
        SpecError: It cannot be read in batches, or its length is not known.
    """
    wanted = steps * accumulate if steps is not None else None
    if (
        isinstance(source, DataLoader)
        and not isinstance(source.dataset, IterableDataset)
        and source.batch_sampler is not None
    ):
        return IndexedSource(source, wanted)
    passes = Passes.over(source, has_steps=wanted is not None)
    return StreamSource(passes, wanted or passes.length())
