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
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from phalanx.data.order import share_sizes
from phalanx.engine.rng import draw_seed
from phalanx.errors import DataError, SpecError
from phalanx.program.rows import count_rows, take_rows

_MASK32 = 2**32 - 1
# Enough to tell two orders apart.
_COMPARED_BATCHES = 64


@dataclass(frozen=True)
class BatchCut:
    """The rows of each global batch that a worker takes."""

    rank: int = 0
    size: int = 1
    shares: Sequence[float] | None = None

    def bounds(self, count: int) -> tuple[int, int]:
        """Return first and last row (excluded) of this worker in a batch of so many rows.

        A server, which runs the script up to its loop, has a rank behind the workers' and no row.
        """
        if self.rank >= self.size:
            return count, count
        sizes = share_sizes(count, self.size, self.shares)
        start = sum(sizes[: self.rank])
        return start, start + sizes[self.rank]


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
        for owner in (loader, loader.sampler, loader.batch_sampler):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(key & (2**63 - 1))
            set_epoch = getattr(owner, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(number)
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
                # A worker without a row computes one that counts nothing.
                yield batch[start:stop] or batch[:1]

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
        make: Begins a pass; called with its number.
        batch_size: Rows of a usual batch; None: those of the first.
        num_batches: Of one pass of the script's loop; shorter streams are read again.
        restarts: Whether `make` can be called more than once.
    """

    counts_rows = False

    def __init__(
        self,
        make: Callable[[int], Iterator[object]],
        *,
        batch_size: int | None,
        num_batches: int,
        restarts: bool,
    ) -> None:
        if batch_size is None:
            head = list(islice(make(0), 1))
            if not head:
                raise DataError("the stream given to session.data() has no batch")
            batch_size = count_rows(head[0])
            if not restarts:
                make = _with_head(head, make)
        self._make = make
        self._restarts = restarts
        self.batch_size = batch_size
        self.num_batches = num_batches
        self.num_samples = num_batches * batch_size

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
            own = take_rows(batch, start, stop) if stop > start else take_rows(batch, 0, 1)
            yield MicroBatch(own, stop - start, count)

    def _endless(self, epoch: int, seed: int) -> Iterator[object]:
        for number in range(1 << 31):
            found = False
            # Not restored: a stream draws while it is read.
            seed_all(draw_seed(draw_seed(seed, epoch, number), 0, 0))
            for batch in self._make(epoch):
                found = True
                yield batch
            if not found or not self._restarts:
                raise DataError(
                    "the stream given to session.data() has ended before the script's loop; give "
                    "fewer 'steps', or something that can be read again, such as a function"
                )


def _with_head(
    head: list[object], make: Callable[[int], Iterator[object]]
) -> Callable[[int], Iterator[object]]:
    return lambda number: chain(head, make(number))


def open_source(source: object, *, steps: int | None, accumulate: int) -> BatchSource:
    """Make a source of what the user gave to `session.data`.

    Raises:
        SpecError: It cannot be read in batches, or its length is not known.
    """
    wanted = steps * accumulate if steps is not None else None
    if isinstance(source, DataLoader):
        if not isinstance(source.dataset, IterableDataset) and source.batch_sampler is not None:
            return IndexedSource(source, wanted)
        return StreamSource(
            lambda _: iter(source),
            batch_size=source.batch_size,
            num_batches=wanted or _length(source),
            restarts=True,
        )
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        raise SpecError(
            "session.data() got a Dataset, which does not say how many samples are a batch; wrap "
            "it in a DataLoader"
        )
    if callable(source):
        if wanted is None:
            raise _no_length(source)
        return StreamSource(
            lambda _: iter(source()), batch_size=None, num_batches=wanted, restarts=True
        )
    if isinstance(source, Iterator):
        return StreamSource(
            lambda _: source, batch_size=None, num_batches=wanted or _length(source), restarts=False
        )
    if isinstance(source, Iterable):
        return StreamSource(
            lambda _: iter(source),
            batch_size=None,
            num_batches=wanted or _length(source),
            restarts=True,
        )
    raise SpecError(
        f"session.data() got {type(source).__name__}; give a DataLoader, an iterable of batches, "
        "or a function that returns one"
    )


def _length(source: object) -> int:
    try:
        return len(source)  # type: ignore[arg-type]
    except TypeError:
        raise _no_length(source) from None


def _no_length(source: object) -> SpecError:
    return SpecError(
        f"session.data() got a {type(source).__name__} without a length; say how many updates the "
        "loop makes, as in session.data(loader, steps=1000)"
    )
