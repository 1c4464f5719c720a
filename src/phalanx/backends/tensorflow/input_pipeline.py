"""Feed networks through tf.data: the samples of `data.pipeline`, cut and augmented alike.

Batches and random augmentations are those of the native backend, decided by `data.shards`; tf.data
gathers, augments, normalises and prefetches. Shard policies are TensorFlow's under other names
(sample: DATA, file: FILE, off: OFF), applied before tf.data sees the samples, so nothing is left
for it to shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from phalanx.data.augment import PAD, draw_changes, start_of
from phalanx.data.order import share_sizes
from phalanx.data.pipeline import Dataset, Part, train_shards
from phalanx.data.shards import Cut
from phalanx.spec.job import JobSpec

Transform = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""(stored images, augmentations) to network inputs."""
StoredArrays = tuple[tf.Tensor, tf.Tensor]
"""Stored inputs and targets."""
# Samples that are decoded at once.
_PIECE = 1024


@dataclass(frozen=True)
class InputPlan:
    """The batches of one worker: rows of the stored arrays, one after the other."""

    rows: npt.NDArray[np.int64]
    changes: npt.NDArray[np.int32]
    """Augmentation of each row: flipped, row and column of its window."""
    bounds: npt.NDArray[np.int64]
    """Where each batch begins, and the last one ends."""
    counts: npt.NDArray[np.int64]
    """Samples of all workers in each step."""

    def __len__(self) -> int:
        return len(self.counts)


def train_plan(
    dataset: Dataset, job: JobSpec, *, epoch: int, rank: int, start_sample: int = 0
) -> InputPlan:
    """Return one worker's batches of one training epoch."""
    part = dataset.train
    policy, shards = train_shards(
        part,
        spec=job.data,
        seed=job.seed,
        global_batch=job.global_batch,
        num_workers=job.workers,
        shares=job.batch.shares,
    )
    own_key = 1 + rank if policy == "off" else 0
    cuts = list(shards.batches(epoch, rank, start_sample=start_sample))
    return _plan(part, cuts, start_of((job.seed, epoch, own_key)))


def eval_plan(part: Part, *, rank: int, num_workers: int, worker_batch: int) -> InputPlan:
    """Return one worker's share of a part, in order and unchanged."""
    sizes = share_sizes(part.num_samples, num_workers)
    first = sum(sizes[:rank])
    own = np.arange(first, first + sizes[rank], dtype=np.int64)
    starts = list(range(0, len(own), worker_batch))
    bounds = np.array([*starts, len(own)], dtype=np.int64)
    return InputPlan(
        rows=part.rows[own],
        changes=np.tile(np.array([0, PAD, PAD], dtype=np.int32), (len(own), 1)),
        bounds=bounds,
        counts=np.diff(bounds),
    )


def may_be_empty(dataset: Dataset, job: JobSpec) -> bool:
    """Return whether a worker may be without samples in some step."""
    plans = (train_plan(dataset, job, epoch=0, rank=rank) for rank in range(job.workers))
    return any((np.diff(plan.bounds) == 0).any() for plan in plans)


def _plan(part: Part, cuts: Sequence[Cut], start: np.uint64) -> InputPlan:
    indices = np.concatenate([cut.indices for cut in cuts]) if cuts else np.zeros(0, np.int64)
    drawn = draw_changes(indices, start)
    lengths = [len(cut.indices) for cut in cuts]
    return InputPlan(
        rows=part.rows[indices],
        changes=np.stack([drawn.flipped, drawn.rows, drawn.columns], axis=1).astype(np.int32),
        bounds=np.cumsum([0, *lengths], dtype=np.int64),
        counts=np.array([cut.global_count for cut in cuts], dtype=np.int64),
    )


def make_transform(part: Part, changes: Sequence[str]) -> Transform:
    """Return the transform from stored samples to inputs: augmentation, then normalisation."""
    scale = tf.constant(part.normalizer.scale)
    shift = tf.constant(part.normalizer.shift)

    def transform(inputs: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        if "flip" in changes:
            flipped = tf.reshape(drawn[:, 0] > 0, (-1, 1, 1, 1))
            inputs = tf.where(flipped, inputs[:, :, ::-1], inputs)
        if "pad-crop" in changes:
            inputs = _crop(inputs, drawn[:, 1], drawn[:, 2])
        if part.normalizer.dtype == np.int64:
            return tf.cast(inputs, tf.int64)
        return tf.cast(inputs, tf.float32) * scale + shift

    return transform


def _crop(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    height, width = images.shape[1], images.shape[2]
    padded = tf.pad(images, [[0, 0], [PAD, PAD], [PAD, PAD], [0, 0]])
    by_row = tf.gather(padded, rows[:, None] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(by_row, columns[:, None] + tf.range(width), axis=2, batch_dims=1)


def batches(
    stored: StoredArrays, plan: InputPlan, transform: Transform, *, prefetch: int
) -> tf.data.Dataset:
    """Return the batches of a plan: (inputs, targets, samples of all workers in the step).

    `prefetch` batches are prepared ahead; 0 prepares them in line.
    """
    inputs, targets = stored
    rows, changes = tf.constant(plan.rows), tf.constant(plan.changes)

    def gather(first: tf.Tensor, last: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, ...]:
        own = rows[first:last]
        cut = tf.gather(inputs, own)
        return transform(cut, changes[first:last]), tf.gather(targets, own), count

    steps = tf.data.Dataset.from_tensor_slices((plan.bounds[:-1], plan.bounds[1:], plan.counts))
    if not prefetch:
        return steps.map(gather)
    ready = steps.map(gather, num_parallel_calls=1, deterministic=True).prefetch(prefetch)
    options = tf.data.Options()
    # Every worker has its part already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.threading.private_threadpool_size = 1
    return ready.with_options(options)


def hold(*parts: Part) -> StoredArrays:
    """Return the arrays of these parts as tensors of this process, as far as the parts reach."""
    stop = _stop(parts)
    return tf.constant(parts[0].inputs[:stop]), tf.constant(parts[0].targets[:stop])


def read_stored(folder: Path, place: Path, part: Part) -> StoredArrays:
    """Read the stored arrays of the training part, by TensorFlow on the device that executes this.

    In pieces: a whole file would be in memory three times while it is decoded. `folder` holds the
    same files here as `place` does on the machine that executes this.
    """
    stop = _stop([part])
    found = []
    for kind, array in (("inputs", part.inputs), ("targets", part.targets)):
        file = f"train_{kind}.npy"
        records = tf.data.FixedLengthRecordDataset(
            str(place / file),
            record_bytes=array[0].nbytes,
            header_bytes=(folder / file).stat().st_size - array.nbytes,
        )

        def decode(
            rows: tf.Tensor,
            shape: tuple[int, ...] = array.shape[1:],
            dtype: npt.DTypeLike = array.dtype,
        ) -> tf.Tensor:
            return tf.reshape(tf.io.decode_raw(rows, tf.as_dtype(dtype)), (-1, *shape))

        pieces = records.take(stop).batch(_PIECE).map(decode)
        found.append(pieces.rebatch(stop).get_single_element())
    return found[0], found[1]


def _stop(parts: Sequence[Part]) -> int:
    return max((int(part.rows[-1]) + 1 for part in parts if len(part.rows)), default=0)
