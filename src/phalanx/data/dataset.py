"""Open a data set: its parts, its shapes, and its normalisation.

Joins source, cache and split; `pipeline` makes batches of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array, Scale, Source
from phalanx.data.cache import CachedData, CachedPart, open_cached
from phalanx.data.file_shards import file_sizes_of
from phalanx.data.normalize import Normalizer
from phalanx.data.order import Indices
from phalanx.data.ownership import SampleOwnership
from phalanx.data.sources import open_source
from phalanx.data.split import split_rows
from phalanx.data.statistics import Statistics
from phalanx.errors import DataError, SpecError
from phalanx.spec.data import AUGMENTATIONS, METRICS, DataSpec, MetricName
from phalanx.spec.epoch_quota import EpochQuota
from phalanx.spec.modality import Modality


@dataclass(frozen=True)
class Part:
    """Training, validation or test samples: some rows of arrays mapped from the cache."""

    name: str
    inputs: Array
    """All stored inputs, of which `rows` are this part's."""
    targets: Array
    """All stored targets, likewise."""
    rows: Indices
    """Sorted; sample i of this part is row `rows[i]` of the arrays."""
    file_sizes: tuple[int, ...]
    """Samples of this part per file, in order."""
    normalizer: Normalizer
    features: Mapping[str, npt.NDArray[np.float32]]
    """Features of all stored samples that networks do not see."""
    ownership: SampleOwnership | None = None
    """Samples owned by each worker, where a job distributes them."""

    @property
    def num_samples(self) -> int:
        """Samples in this part."""
        return len(self.rows)

    def class_counts(self, num_classes: int) -> npt.NDArray[np.int64]:
        """Count samples per class; only for integer targets."""
        return np.bincount(self.targets[self.rows], minlength=num_classes).astype(np.int64)


@dataclass(frozen=True)
class Dataset:
    """A data set, split and ready to be cut into batches."""

    name: str
    location: str
    cache_folder: Path
    cache_s: float
    """Seconds spent on decoding the files, or on checking a filled cache."""
    fingerprint: str
    """Digest of the decoded samples: equal on any machine that holds the same files."""
    train: Part
    validation: Part
    test: Part
    num_classes: int
    """Classes, or values per sample if the targets are not labels: the outputs a model needs."""
    statistics: Statistics
    metrics: tuple[MetricName, ...] = ()
    """Metrics of models on it."""
    class_names: tuple[str, ...] = ()
    """Names of the classes; empty: their numbers."""
    scale: Scale | None = None
    """Scale of the classes, if they are ranges of a number."""
    modalities: tuple[Modality, ...] = ()
    """Modalities of a packed row; empty: samples have one modality."""
    test_map: tuple[int, int] | None = None
    """Rows and columns, if the test samples lie on a grid, in its order."""

    @property
    def epoch_samples(self) -> int:
        """Samples of a training epoch over all workers; some perhaps twice, or dropped."""
        ownership = self.train.ownership
        return self.train.num_samples if ownership is None else ownership.quota.samples

    @property
    def quota(self) -> EpochQuota | None:
        """Return the epoch quota where workers own samples; None: batches are cut over all."""
        return None if self.train.ownership is None else self.train.ownership.quota

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (H, W, C) for images, (D,) for features."""
        return self.train.inputs.shape[1:]

    @property
    def has_whole_numbers(self) -> bool:
        """Whether batches hold whole numbers, which no network can take for quantities."""
        return self.train.normalizer.dtype == np.int64

    @property
    def is_classification(self) -> bool:
        """Whether the targets are class labels."""
        return self.train.targets.dtype == np.int64

    def describe(self) -> dict[str, object]:
        """Return the facts that `phalanx data show` prints; plain JSON types."""
        parts = (self.train, self.validation, self.test)
        return {
            "name": self.name,
            "location": self.location,
            "cache": str(self.cache_folder),
            "fingerprint": self.fingerprint,
            "input_shape": list(self.input_shape),
            "input_type": str(self.train.inputs.dtype),
            "target_type": str(self.train.targets.dtype),
            "num_classes": self.num_classes,
            "num_files": len(self.train.file_sizes),
            "num_samples": {part.name: part.num_samples for part in parts},
            "class_counts": {
                part.name: part.class_counts(self.num_classes).tolist() for part in parts
            }
            if self.is_classification
            else None,
            "mean": list(self.statistics.mean),
            "std": list(self.statistics.std),
        }


def open_dataset(
    spec: DataSpec, *, data_root: Path, cache_root: Path, whole_numbers: bool = False
) -> Dataset:
    """Find a data set, decode it unless it is cached, and split it.

    Args:
        spec: The job's data section.
        data_root: Folder of built-in data sets, unless the spec names another.
        cache_root: Folder of all decoded data sets on this machine.
        whole_numbers: Whether the network reads whole numbers as such (see
            `JobSpec.reads_whole_numbers`) rather than as quantities to be normalised.

    Raises:
        SpecError: The name is unknown, or a setting does not fit the data.
        DataError: A file is missing or damaged.
    """
    started = time.perf_counter()
    source = open_source(spec, data_root=data_root)
    cached = open_cached(source, cache_root=cache_root)
    cache_s = time.perf_counter() - started
    _check_fit(spec, cached)
    split = split_rows(
        len(cached.train.targets),
        validation=spec.validation,
        limit=spec.limit,
        test_share=source.test_share if cached.test is None else None,
    )
    normalizer = Normalizer(
        spec.normalize,
        statistics=cached.statistics,
        like=cached.train.inputs,
        whole_numbers=whole_numbers,
    )
    stored_test = cached.test or cached.train
    test_rows = split.test if split.test is not None else np.arange(len(stored_test.targets))
    return Dataset(
        name=source.name,
        location=source.location,
        cache_folder=cached.folder,
        cache_s=cache_s,
        fingerprint=cached.fingerprint,
        train=_part("train", cached.train, split.train, normalizer),
        validation=_part("validation", cached.train, split.validation, normalizer),
        test=_part("test", stored_test, test_rows, normalizer),
        num_classes=cached.num_classes,
        statistics=cached.statistics,
        metrics=_metrics(spec, source, cached),
        class_names=source.class_names,
        scale=source.scale,
        modalities=source.modalities,
        test_map=source.test_map,
    )


def _metrics(spec: DataSpec, source: Source, cached: CachedData) -> tuple[MetricName, ...]:
    if cached.train.targets.dtype != np.int64:
        return ()
    chosen = source.metrics if spec.metrics == "auto" else spec.metrics
    lost = [name for name in chosen if METRICS.find(name).needs_scale and source.scale is None]
    if lost:
        raise SpecError(
            f"data.metrics: {lost[0]} needs classes that are ranges of a number, which those of "
            f"{source.name} are not; leave it out",
            metric=lost[0],
        )
    return chosen


def _part(name: str, stored: CachedPart, rows: Indices, normalizer: Normalizer) -> Part:
    return Part(
        name=name,
        inputs=stored.inputs,
        targets=stored.targets,
        rows=rows,
        file_sizes=file_sizes_of(rows, stored.file_sizes),
        normalizer=normalizer,
        features=stored.features,
    )


def _check_fit(spec: DataSpec, cached: CachedData) -> None:
    shape = cached.train.inputs.shape[1:]
    of_images = [name for name in spec.augment if AUGMENTATIONS.find(name).function is None]
    if of_images and len(shape) != 3:
        raise SpecError(
            f"data.augment: {of_images[0]} changes images of shape (height, width, channels), "
            f"and the inputs of {spec.name} have shape {shape}; leave 'augment' away",
            augment=spec.augment,
        )
    if cached.test is not None and cached.test.inputs.shape[1:] != shape:
        raise DataError(
            f"{spec.name}: test inputs have shape {cached.test.inputs.shape[1:]} and training "
            f"inputs {shape}; bring both to one shape",
            dataset=spec.name,
        )
