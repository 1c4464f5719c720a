"""Apply a job's distribution to an opened data set, and describe it for the record.

`partition` decides; this module gives it the features of the data and the columns of each sensor,
and computes the epoch quota. Called once per process, and by `phalanx data`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from phalanx.data.dataset import Dataset, Part
from phalanx.data.order import share_sizes
from phalanx.data.ownership import SampleOwnership, divide
from phalanx.data.partition import PartitionInput, label_skew, modalities_held, partition
from phalanx.data.portable_random import sum_rows
from phalanx.records.distribution import Distribution, WorkerShare
from phalanx.spec.data import DistributionSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.modality import columns_of

_CHUNK_BYTES = 32 * 2**20


def distribute(dataset: Dataset, job: JobSpec) -> Dataset:
    """Partition the training samples as the job asks; without `data.distribution` nothing changes.

    Raises:
        SpecError: The scheme does not fit the data or the number of workers.
    """
    spec = job.data.distribution
    # Workers of a split network restrict themselves to the columns that their parts need.
    if spec is None or spec.name == "stream" or job.strategy.splits_model:
        return dataset
    owned = partition(spec, _input(dataset, spec, job))
    rows = share_sizes(job.global_batch, job.workers, job.batch.shares)
    hidden: tuple[tuple[slice, ...], ...] = ()
    if spec.name == "by_modality":
        columns = list(columns_of(dataset.modalities).values())
        hidden = tuple(
            tuple(one for number, one in enumerate(columns) if number not in held)
            for held in modalities_held(job.workers, len(columns))
        )
    ownership = SampleOwnership(
        owned=owned,
        quota=divide([len(one) for one in owned], rows, spec.at_end),
        hidden=hidden,
    )
    return replace(dataset, train=replace(dataset.train, ownership=ownership))


def describe_distribution(dataset: Dataset, job: JobSpec) -> Distribution | None:
    """Return the contents of `distribution.json`; None where nothing is owned."""
    spec, ownership = job.data.distribution, dataset.train.ownership
    if spec is None or ownership is None:
        return None
    sizes = [len(owned) for owned in ownership.owned]
    counts = _class_counts(dataset, ownership)
    skews, skew = label_skew(counts) if counts is not None else ([None] * job.workers, None)
    held = _held_names(dataset, job, spec)
    quota = ownership.quota
    return Distribution(
        scheme=spec.name,
        settings=spec.model_dump(exclude={"name", "seed"}, exclude_defaults=True),
        seed=_seed(spec, job),
        data=dataset.name,
        fingerprint=dataset.fingerprint,
        num_samples=dataset.train.num_samples,
        num_steps=quota.num_steps,
        samples_per_epoch=quota.samples,
        skew=skew,
        size_ratio=max(sizes) / min(sizes),
        class_names=list(dataset.class_names),
        workers=[
            WorkerShare(
                worker=worker,
                num_samples=sizes[worker],
                samples_per_step=quota.rows[worker],
                samples_per_epoch=quota.totals[worker],
                class_counts=counts[worker].tolist() if counts is not None else None,
                skew=skews[worker],
                modalities=held[worker] if held else None,
                rows=dataset.train.rows[ownership.owned[worker]].tolist(),
            )
            for worker in range(job.workers)
        ],
    )


def _input(dataset: Dataset, spec: DistributionSpec, job: JobSpec) -> PartitionInput:
    part = dataset.train
    return PartitionInput(
        targets=part.targets[part.rows],
        is_classes=dataset.is_classification,
        num_classes=dataset.num_classes,
        features=_features(part, spec),
        num_workers=job.workers,
        num_modalities=len(dataset.modalities),
        seed=_seed(spec, job),
    )


def _seed(spec: DistributionSpec, job: JobSpec) -> int:
    return job.seed if spec.seed is None else spec.seed


def _features(part: Part, spec: DistributionSpec) -> dict[str, npt.NDArray[np.float64]]:
    known = {
        name: np.asarray(values[part.rows], dtype=np.float64)
        for name, values in part.features.items()
    }
    # Reading all inputs takes a while, so it is done only on request.
    known["mean"] = _means(part) if spec.feature == "mean" else np.empty(0)
    return known


def _means(part: Part) -> npt.NDArray[np.float64]:
    """Return the mean of each sample's values."""
    step = max(1, _CHUNK_BYTES // max(1, 8 * part.inputs[:1].size))
    chunks = []
    for first in range(0, part.num_samples, step):
        rows = part.rows[first : first + step]
        flat = part.inputs[rows].reshape(len(rows), -1).astype(np.float64)
        chunks.append(sum_rows(flat) / flat.shape[1])
    return np.concatenate(chunks)


def _class_counts(dataset: Dataset, ownership: SampleOwnership) -> npt.NDArray[np.int64] | None:
    if not dataset.is_classification:
        return None
    targets = dataset.train.targets[dataset.train.rows]
    counts = [np.bincount(targets[own], minlength=dataset.num_classes) for own in ownership.owned]
    return np.stack(counts).astype(np.int64)


def _held_names(dataset: Dataset, job: JobSpec, spec: DistributionSpec) -> list[list[str]]:
    if spec.name != "by_modality":
        return []
    names = [one.name for one in dataset.modalities]
    return [[names[n] for n in held] for held in modalities_held(job.workers, len(names))]
