"""Make the batches of one worker from an opened data set.

Builds the chain shuffle -> cut -> augment -> normalise -> prefetch. Workers call
`train_batches` once per epoch and `eval_batches` once per evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import numpy as np

from phalanx.data.augment import Augmenter
from phalanx.data.base import Array
from phalanx.data.dataset import Dataset, Part, open_dataset
from phalanx.data.order import EpochOrder, Indices, share_sizes
from phalanx.data.ownership import OwnedShards
from phalanx.data.shards import (
    Cut,
    FileShards,
    OffShards,
    SampleShards,
    Shards,
    choose_policy,
)
from phalanx.data.stream import Batch, BatchStream, Prefetch
from phalanx.spec.data import DataSpec

__all__ = [
    "Batch",
    "BatchStream",
    "Dataset",
    "Part",
    "eval_batches",
    "open_dataset",
    "train_batches",
    "train_shards",
    "unit_batches",
]

_EVAL_PREFETCH = 2


def train_batches(
    dataset: Dataset,
    *,
    spec: DataSpec,
    seed: int,
    epoch: int,
    global_batch: int,
    rank: int,
    num_workers: int,
    shares: Sequence[float] | None = None,
    start_step: int = 0,
    start_sample: int = 0,
) -> BatchStream:
    """Stream one worker's batches of one training epoch, from its start or from a point in it.

    `start_step` continues with workers and batch as they were, `start_sample` with any.
    """
    if start_step and start_sample:
        raise ValueError("give start_step or start_sample, not both")
    part = dataset.train
    policy, shards = train_shards(
        part,
        spec=spec,
        seed=seed,
        global_batch=global_batch,
        num_workers=num_workers,
        shares=shares,
    )
    start_sample = start_sample or shards.offset_of(start_step)
    augmenter = None
    if spec.augment:
        own_key = (1 + rank,) if policy in ("off", "own") else (0,)
        augmenter = Augmenter(
            spec.augment,
            key=(seed, epoch, *own_key),
            max_rows=shards.max_rows(rank),
            like=part.inputs,
        )
    return _stream(
        part,
        shards.batches(epoch, rank, start_sample=start_sample),
        steps=shards.steps(start_sample),
        max_rows=shards.max_rows(rank),
        augmenter=augmenter,
        prefetch=spec.prefetch,
    )


def train_shards(
    part: Part,
    *,
    spec: DataSpec,
    seed: int,
    global_batch: int,
    num_workers: int,
    shares: Sequence[float] | None = None,
) -> tuple[Literal["sample", "file", "off", "own"], Shards]:
    """Return the resolved shard policy of a job, and its cut of epochs."""
    if part.ownership is not None:
        return "own", _owned(part, spec, seed, num_workers)
    policy = choose_policy(
        spec.shard,
        num_files=len(part.file_sizes),
        num_workers=num_workers,
        shuffle=spec.shuffle,
    )
    order = EpochOrder(num_samples=part.num_samples, seed=seed, shuffle=spec.shuffle)
    cut = {"global_batch": global_batch, "num_workers": num_workers}
    if policy == "file":
        return policy, FileShards(order, file_sizes=part.file_sizes, shares=shares, **cut)
    kind = SampleShards if policy == "sample" else OffShards
    return policy, kind(order, shares=shares, **cut)


def unit_batches(
    dataset: Dataset,
    units: Iterable[tuple[int, int]],
    *,
    spec: DataSpec,
    seed: int,
    epoch: int,
    global_batch: int,
    num_parts: int,
    shares: Sequence[float] | None = None,
) -> BatchStream:
    """Stream batches of one epoch that are requested one by one, as (step, part).

    `units` may block while nothing is wanted; it must end before the stream is closed.
    """
    part = dataset.train
    shards: OwnedShards | SampleShards
    if part.ownership is not None:
        shards = _owned(part, spec, seed, num_parts)
    else:
        order = EpochOrder(num_samples=part.num_samples, seed=seed, shuffle=spec.shuffle)
        shards = SampleShards(
            order, global_batch=global_batch, num_workers=num_parts, shares=shares
        )
    max_rows = max(shards.max_rows(rank) for rank in range(num_parts))
    augmenter = None
    if spec.augment:
        augmenter = Augmenter(
            spec.augment, key=(seed, epoch, 0), max_rows=max_rows, like=part.inputs
        )
    return _stream(
        part,
        shards.cuts(epoch, units),
        steps=shards.steps(),
        max_rows=max_rows,
        augmenter=augmenter,
        prefetch=spec.prefetch,
    )


def eval_batches(part: Part, *, rank: int, num_workers: int, worker_batch: int) -> BatchStream:
    """Stream one worker's share of a part, in order and unaugmented.

    Every sample is in exactly one worker's share. Shares differ by one sample at most, so the
    number of batches can differ between workers; none is empty.
    """
    sizes = share_sizes(part.num_samples, num_workers)
    own = np.arange(sum(sizes[:rank]), sum(sizes[: rank + 1]), dtype=np.int64)
    steps = range(-(-len(own) // worker_batch))
    return _stream(
        part,
        _eval_cuts(own, sizes, worker_batch, steps),
        steps=steps,
        max_rows=worker_batch,
        augmenter=None,
        prefetch=_EVAL_PREFETCH,
    )


def _eval_cuts(
    own: Indices, sizes: Sequence[int], worker_batch: int, steps: range
) -> Iterator[Cut]:
    for step in steps:
        first, last = step * worker_batch, (step + 1) * worker_batch
        before = sum(min(size, first) for size in sizes)
        yield Cut(
            epoch=0,
            step=step,
            indices=own[first:last],
            global_count=sum(min(size, last) for size in sizes) - before,
            global_offset=before,
        )


def _owned(part: Part, spec: DataSpec, seed: int, num_workers: int) -> OwnedShards:
    assert part.ownership is not None
    order = EpochOrder(num_samples=part.num_samples, seed=seed, shuffle=spec.shuffle)
    return OwnedShards(order, ownership=part.ownership, num_workers=num_workers)


@dataclass(frozen=True)
class _Gathered:
    """Samples between the stages."""

    cut: Cut
    inputs: Array
    targets: Array


def _stream(
    part: Part,
    cuts: Iterator[Cut],
    *,
    steps: range,
    max_rows: int,
    augmenter: Augmenter | None,
    prefetch: int,
) -> BatchStream:
    """Join the stages into one chain."""
    max_rows = min(max_rows, part.num_samples)
    # Only one thread touches it, and each batch leaves it before the next is cut.
    stored = (
        augmenter.images
        if augmenter is not None
        else np.empty((max_rows, *part.inputs.shape[1:]), dtype=part.inputs.dtype)
    )
    # See `Prefetch`: one in the making, `prefetch` ready, one held by the consumer.
    buffers = cycle([part.normalizer.buffer(max_rows) for _ in range(prefetch + 2)])

    def gather(cut: Cut) -> _Gathered:
        rows = part.rows[cut.indices]
        inputs = stored[: len(rows)]
        if part.inputs.flags.c_contiguous:
            # The rows are right by construction; "clip" spares numpy a copy of the whole result.
            np.take(part.inputs, rows, axis=0, out=inputs, mode="clip")
        else:
            # Of some columns only: `take` would copy all samples first.
            inputs[:] = part.inputs[rows]
        return _Gathered(cut=cut, inputs=inputs, targets=part.targets[rows])

    def augment(samples: _Gathered) -> _Gathered:
        assert augmenter is not None
        return replace(samples, inputs=augmenter(samples.cut.indices))

    def normalise(samples: _Gathered) -> Batch:
        inputs = part.normalizer(samples.inputs, next(buffers))
        if part.ownership is not None:
            for columns in part.ownership.hidden_from(samples.cut.worker):
                inputs[:, columns] = 0.0
        return Batch(
            inputs=inputs,
            targets=samples.targets,
            indices=samples.cut.indices,
            global_count=samples.cut.global_count,
            global_offset=samples.cut.global_offset,
            epoch=samples.cut.epoch,
            step=samples.cut.step,
            fields=part.fields,
        )

    threads: list[Prefetch[Any]] = []
    samples: Iterator[_Gathered] = map(gather, cuts)
    if augmenter is not None:
        samples = map(augment, samples)
        if prefetch:
            # Changing and normalising cost about the same, so they run side by side.
            samples = Prefetch(samples, depth=1)
            threads.append(samples)
    batches: Iterator[Batch] = map(normalise, samples)
    if prefetch:
        batches = Prefetch(batches, depth=prefetch)
        threads.append(batches)
    return BatchStream(batches, threads=threads, steps=steps)
