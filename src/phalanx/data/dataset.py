"""Open a data set: its parts, its shapes, and its normalisation.

Joins source and cache; `pipeline` makes batches of it. The split into training, validation and test
depends on a constant and not on the job's seed, so that runs with different seeds are measured on
the same samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array, FileSource, Scale, Source
from phalanx.data.cache import CachedData, CachedPart, open_cached
from phalanx.data.normalize import Normalizer, Statistics
from phalanx.data.order import Indices, random_order
from phalanx.data.ownership import SampleOwnership
from phalanx.data.shards import file_sizes_of
from phalanx.data.sources import open_source
from phalanx.errors import DataError, SpecError
from phalanx.spec.data import AUGMENTATIONS, METRICS, DataSpec, MetricName
from phalanx.spec.epoch_quota import EpochQuota
from phalanx.spec.fields import InputField
from phalanx.spec.modality import Modality

_SEED = 20_111  # any constant; changing it changes every validation set
_TEST, _LIMIT, _VALIDATION = range(3)  # one stream of random numbers for each decision
AUTO_VALIDATION = 0.1  # for the MNIST family this is the customary 6,000 of 60,000


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
    fields: tuple[InputField, ...] = ()
    """Inputs of a packed row; empty: samples have one input."""

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
    def fields(self) -> tuple[InputField, ...]:
        """Inputs of a packed row; empty: samples have one input."""
        return self.train.fields

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
        """Whether each sample has one class."""
        return self.has_labels and self.train.targets.ndim == 1

    @property
    def has_labels(self) -> bool:
        """Whether the targets are class labels, one per sample or one per position."""
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
            "class_names": list(self.class_names),
            "mean": list(self.statistics.mean),
            "std": list(self.statistics.std),
        }


def open_dataset(
    spec: DataSpec, *, data_root: Path, cache_root: Path, whole_numbers: bool = False
) -> Dataset:
    """Find a data set, decode it unless it is cached, and split it.

    `whole_numbers`: whether the network reads whole numbers as such (see
    `JobSpec.reads_whole_numbers`) rather than as quantities to be normalised.

    Raises:
        SpecError: The name is unknown, or a setting does not fit the data.
        DataError: A file is missing or damaged.
    """
    started = time.perf_counter()
    source = open_source(spec, data_root=data_root, cache_root=cache_root)
    try:
        cached = open_cached(source, cache_root=cache_root)
    except DataError as error:
        if not isinstance(source, FileSource):
            raise
        raise source.in_users_words(error) from error
    cache_s = time.perf_counter() - started
    _check_fit(spec, cached)
    held_out = 0.0 if cached.validation is not None else spec.validation
    split = split_rows(
        len(cached.train.targets),
        validation=0.0 if held_out == "test" else held_out,
        limit=spec.limit,
        test_share=source.test_share if cached.test is None else None,
    )
    normalizer = Normalizer(
        source.normalize if spec.normalize == "auto" else spec.normalize,
        statistics=cached.statistics,
        like=cached.train.inputs,
        whole_numbers=whole_numbers,
        packed=bool(cached.fields),
    )
    stored_test = cached.test or cached.train
    test_rows = split.test if split.test is not None else np.arange(len(stored_test.targets))
    held = _validation(spec, cached, split, (stored_test, test_rows))

    def part(name: str, stored: CachedPart, rows: Indices) -> Part:
        return replace(_part(name, stored, rows, normalizer), fields=cached.fields)

    return Dataset(
        name=source.name,
        location=source.location,
        cache_folder=cached.folder,
        cache_s=cache_s,
        fingerprint=cached.fingerprint,
        train=part("train", cached.train, split.train),
        validation=part("validation", *held),
        test=part("test", stored_test, test_rows),
        num_classes=cached.num_classes,
        statistics=cached.statistics,
        metrics=_metrics(spec, source, cached),
        class_names=source.class_names,
        scale=source.scale,
        modalities=source.modalities,
        test_map=source.test_map,
    )


def _validation(
    spec: DataSpec, cached: CachedData, split: Split, test: tuple[CachedPart, Indices]
) -> tuple[CachedPart, Indices]:
    """Return which rows of which part are measured after each epoch."""
    if spec.validation == "test":
        if len(test[1]) == 0:
            raise SpecError(
                f"data.validation: {spec.name} has no test part to measure after each epoch; "
                "hold out a share such as 0.1",
                dataset=spec.name,
            )
        return test
    if cached.validation is None:
        return cached.train, split.validation
    wanted = len(cached.validation.targets) if spec.validation != 0 else 0
    return cached.validation, np.arange(wanted)


def _metrics(spec: DataSpec, source: Source, cached: CachedData) -> tuple[MetricName, ...]:
    if cached.train.targets.dtype != np.int64 or cached.train.targets.ndim > 1:
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
    if spec.augment and cached.fields:
        raise SpecError(
            f"data.augment changes samples of one input, and those of {spec.name} have "
            f"{', '.join(field.name for field in cached.fields)}; leave 'augment' away",
            augment=spec.augment,
        )
    for name, stored in (("test", cached.test), ("validation", cached.validation)):
        if stored is not None and stored.inputs.shape[1:] != shape:
            raise DataError(
                f"{spec.name}: {name} inputs have shape {stored.inputs.shape[1:]} and training "
                f"inputs {shape}; bring both to one shape",
                dataset=spec.name,
            )


def only_columns(dataset: Dataset, start: int, stop: int) -> Dataset:
    """Return the same samples with their columns `start` to `stop` only; the rest stays on disk.

    Raises:
        SpecError: Samples are not flat rows, or have fewer columns.
    """
    shape = dataset.input_shape
    if len(shape) != 1 or stop > shape[0]:
        raise SpecError(
            f"the network reads columns {start} to {stop} of flat samples, but the data has "
            f"samples of shape {shape}"
        )

    def cut(part: Part) -> Part:
        inputs, normalizer = part.inputs[:, start:stop], part.normalizer.cut(start, stop)
        return replace(part, inputs=inputs, normalizer=normalizer)

    train, validation, test = map(cut, (dataset.train, dataset.validation, dataset.test))
    return replace(dataset, train=train, validation=validation, test=test)


@dataclass(frozen=True)
class Split:
    """Sorted row numbers; `test` is None if the data set has its own test part."""

    train: Indices
    validation: Indices
    test: Indices | None


def split_rows(
    num_samples: int,
    *,
    validation: float | Literal["auto"] = "auto",
    limit: int | None = None,
    test_share: float | None = None,
) -> Split:
    """Split the rows of a training part.

    Of the rows that are no test samples, `limit` chosen at random are kept; `validation` is the
    share held out of these. Without `test_share` the data set has its own test part.
    """
    rows = np.arange(num_samples, dtype=np.int64)
    test = None
    if test_share is not None:
        rows, test = _hold_out(rows, _held(num_samples, test_share), _TEST)
    if limit is not None and limit < len(rows):
        _, rows = _hold_out(rows, limit, _LIMIT)
    share = AUTO_VALIDATION if validation == "auto" else validation
    train, held = _hold_out(rows, _held(len(rows), share), _VALIDATION)
    return Split(train=train, validation=held, test=test)


def _held(num_samples: int, share: float) -> int:
    """Return the rows to hold out: at least one if a share is given, and never all."""
    if share == 0 or num_samples < 2:
        return 0
    return min(max(1, round(num_samples * share)), num_samples - 1)


def _hold_out(rows: Indices, count: int, stream: int) -> tuple[Indices, Indices]:
    """Take `count` rows out at random: (those that stay, those taken), both sorted."""
    taken = np.zeros(len(rows), dtype=bool)
    taken[random_order(len(rows), (_SEED, stream))[:count]] = True
    return rows[~taken], rows[taken]
