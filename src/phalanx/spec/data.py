"""Describe the data, how it is split, sharded over workers, augmented and fed; and the batch.

`SOURCES`, `AUGMENTATIONS` and `METRICS` are open tables: a kind names its implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from phalanx.spec.base import ListOf, Spec, Words, fault, name_only
from phalanx.spec.data_files import file_settings
from phalanx.spec.names import did_you_mean
from phalanx.spec.registry import Registry, read_args
from phalanx.spec.urls import is_url, without_secrets

Scheme = Literal[
    "iid",
    "replicated",
    "stream",
    "by_class",
    "by_range",
    "by_capacity",
    "quantity",
    "dirichlet",
    "by_feature",
    "stratified",
    "by_modality",
]
PositiveFloat = Annotated[float, Field(gt=0)]
_ALPHA, _EXPONENT = 0.5, 1.0


class DistributionSpec(Spec):
    """Partition of the training samples over workers, fixed for the whole run."""

    name: Scheme
    """iid (divided at random, equally), stratified (at random, the same mix of classes for all),
    by_class (whole classes), by_range (sorted by target, ranges), by_feature (sorted by a feature
    of the sample, ranges), dirichlet (shares of each class drawn at random), quantity (at random,
    unequal sizes), by_capacity (at random, sizes as declared), replicated (all samples to every
    worker), by_modality (one sensor's values to each), stream (nothing is owned: every batch is
    cut over the workers, or assigned to workers that are free)."""
    at_end: Literal["join", "drop", "wrap"] = "join"
    """Workers that run out of samples before others: join (they take part with empty batches), drop
    (the epoch ends for all when the first is done), wrap (they begin again)."""
    alpha: PositiveFloat | None = None
    """Of dirichlet (default 0.5) and, instead of a power law, of quantity: small is uneven, large
    even."""
    exponent: PositiveFloat = _EXPONENT
    """Of quantity: worker r gets in proportion to 1 / r^exponent."""
    capacity: ListOf[PositiveFloat] | None = None
    """Of by_capacity: the relative size of each worker's part, such as its cores."""
    classes: Annotated[int, Field(gt=0)] | None = None
    """Of by_class: classes per worker, shared where several have the same; null: each class is
    with one worker."""
    ranges: Annotated[int, Field(gt=0)] = 1
    """Of by_range: separate ranges per worker, assigned in turn."""
    feature: str | None = None
    """Of by_feature: a feature that the data set stores per sample, such as flux, parent, scene or
    region, or `mean` (of the inputs); samples with the same value stay together."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """Seed of the partition; null: the job's seed."""

    @model_validator(mode="after")
    def _has_effect(self) -> DistributionSpec:
        self._belongs("alpha", self.alpha is not None, "dirichlet", "quantity")
        self._belongs("exponent", self.exponent != _EXPONENT, "quantity")
        self._belongs("capacity", self.capacity is not None, "by_capacity")
        self._belongs("classes", self.classes is not None, "by_class")
        self._belongs("ranges", self.ranges != 1, "by_range")
        self._belongs("feature", self.feature is not None, "by_feature")
        if self.name == "by_capacity" and self.capacity is None:
            raise fault(
                "distribution by_capacity needs capacity",
                ", one number per worker such as [8, 4, 4]",
                at=("name",),
            )
        if self.name == "by_feature" and self.feature is None:
            raise fault(
                "distribution by_feature needs feature", ", such as 'feature: mean'", at=("name",)
            )
        if self.name == "stream" and self.at_end != "join":
            raise fault(
                "distribution.at_end has no effect with stream: no worker runs out first",
                at=("at_end",),
            )
        return self

    def _belongs(self, field: str, used: bool, *homes: str) -> None:
        if used and self.name not in homes:
            raise fault(
                f"distribution.{field} has no effect with {self.name}",
                f"; it belongs to {' and '.join(homes)}",
                at=(field,),
            )

    @property
    def resolved_alpha(self) -> float:
        """Of dirichlet."""
        return _ALPHA if self.alpha is None else self.alpha


DistributionField = Annotated[DistributionSpec, BeforeValidator(name_only)]


ShardPolicy = Literal["auto", "sample", "file", "off"]
DATA_SUFFIXES = (".npz", ".parquet", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class SourceKind:
    """Describe a named data set.

    Import paths are `package.module:function`, loaded where they are used.
    """

    name: str
    open: str
    """Takes the `DataSpec`, and `root` (the folder of data files) by name; returns a
    `phalanx.data.base.Source`."""
    settings: type[Spec] | None = None
    """What `data.args` may hold; None: anything."""


SOURCES: Registry[SourceKind] = Registry(
    "data",
    SourceKind,
    group="phalanx.sources",
    built_in={
        name: SourceKind(name, open="phalanx.data.sources:open_built_in")
        for name in ("digits", "mnist", "fashion-mnist", "kmnist", "cifar10")
    },
    # A class or function takes the arguments themselves.
    adapt=lambda path, _: SourceKind(path, open="phalanx.data.sources:open_callable"),
)


@dataclass(frozen=True)
class AugmentationKind:
    """Describe a random change to training samples."""

    name: str
    function: str | None
    """Import path of a function of a batch of raw samples (which it may change) and a generator of
    NumPy; returns the changed batch in the same shape and type. None: built into the pipeline."""


AUGMENTATIONS: Registry[AugmentationKind] = Registry(
    "augmentation",
    AugmentationKind,
    group="phalanx.augmentations",
    built_in={name: AugmentationKind(name, function=None) for name in ("flip", "pad-crop")},
    adapt=lambda path, _: AugmentationKind(path, function=path),
)
Augmentation = (
    Literal["flip", "pad-crop"]
    | Annotated[str, AfterValidator(AUGMENTATIONS.checked_name), Words("package.module:function")]
)


@dataclass(frozen=True)
class MetricKind:
    """Describe a metric of predicted classes."""

    name: str
    """Name in records and reports."""
    function: str
    """Import path of a function of `phalanx.data.metrics.Predictions` that returns a number."""
    needs_scale: bool = False
    """Whether the classes must be ranges of a number."""


METRICS: Registry[MetricKind] = Registry(
    "metric",
    MetricKind,
    group="phalanx.metrics",
    built_in={
        name: MetricKind(name, function=f"phalanx.data.metrics:{name}")
        for name in ("accuracy", "mean_class_accuracy", "kappa", "within_one")
    },
    adapt=lambda path, _: MetricKind(path.partition(":")[2], function=path),
)
MetricName = (
    Literal["accuracy", "mean_class_accuracy", "kappa", "within_one"]
    | Annotated[str, AfterValidator(METRICS.checked_name), Words("package.module:function")]
)


def is_path(name: str) -> bool:
    """Return whether a data name is a user's file or folder; it need not exist on this machine.

    Addresses count as well: what they name is a file or folder too.
    """
    return "/" in name or name.endswith(DATA_SUFFIXES)


def _known_source_or_path(name: str) -> str:
    if is_url(name):
        return without_secrets(name)
    if is_path(name) or name in SOURCES:
        return name
    raise fault(
        f"unknown data {name!r}",
        f"{did_you_mean(name, SOURCES.names())} (built in: {', '.join(SOURCES.built_in)}; "
        f"or a path that contains '/' or ends in {', '.join(DATA_SUFFIXES)}, or "
        "package.module:name)",
    )


DataName = Annotated[
    str,
    AfterValidator(_known_source_or_path),
    Words("a built-in data set, a path, a URL or package.module:name"),
]


class DataSpec(Spec):
    """A data set and the input pipeline that makes batches of it."""

    name: DataName
    """digits, mnist, fashion-mnist, kmnist, cifar10; the path of a .npz, .parquet, .csv, .tsv or
    .txt file, or of a folder of .parquet files or images (with a `/`), seen from the job file, else
    from where `phalanx` is called, else from the data directory; the address of such a file or
    folder, as `s3://bucket/folder` or `sftp://host/file.csv`; or `package.module:name` of a
    function that returns data sets or loaders of torch or Hugging Face, arrays or a stream, of a
    `Source`, or of a `SourceKind`."""
    args: dict[str, JsonValue] = {}
    """Arguments of your function; how a table, text or folder of images is read."""
    augment: ListOf[Augmentation] = ()
    """Random changes to training samples: flip (left-right), pad-crop (pad by 4, crop back), or a
    function of a batch and a NumPy generator."""
    shard: ShardPolicy = "auto"
    """Shard policy: sample (every batch is cut over the workers), file (each worker owns whole
    files), off (each worker sees everything), auto (file if the source has at least as many files
    as workers and no shuffle across files is asked for, else sample)."""
    distribution: DistributionField | None = None
    """Partition of the samples over the workers, such as iid, by_class or {name: dirichlet, alpha:
    0.1}; null: no worker owns samples and `shard` decides."""
    shuffle: bool = True
    """A new order each epoch, depending only on seed and epoch."""
    normalize: Literal["auto", "standard", "centered", "unit", "none"] = "auto"
    """standard: zero mean and unit deviation per channel; centered: zero mean, and as wide as
    unit; unit: 0 to 1; none: raw values; auto: none for what a function of your own returns, else
    standard. Rows of whole numbers, such as token ids, reach a network of your own as they are
    stored."""
    validation: Annotated[float, Field(ge=0, lt=1)] | Literal["auto", "test"] = "auto"
    """Share of the training samples held out; auto: 6,000 of 60,000 for the MNIST family, else
    10 %; test: hold out none and measure the test part after each epoch, as many published studies
    do (what is chosen by it, such as the best checkpoint, has then seen the test part)."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Use only this many training samples (before the validation split), for quick trials."""
    prefetch: Annotated[int, Field(ge=0)] = 2
    """Batches prepared ahead of training in the background; 0 prepares them in line."""
    directory: str | None = None
    """Where the files lie; default: the data directory (`PHALANX_DATA`, else the user's cache)."""
    copies_gb: PositiveFloat = 50.0
    """Disk space on each machine for copies of files by URL, of all jobs, in gigabytes; those that
    have not been used for longest give way."""
    input_key: str = "x"
    """Column or array that holds the inputs, for .npz and .parquet."""
    target_key: str = "y"
    """Column, array or value of a sample that holds the targets; besides it, samples of your own
    may name them labels, label, targets or target."""
    modalities: ListOf[str] | None = None
    """Arrays of a .npz file, one per sensor and each (samples, channels, height, width), that make
    up the samples instead of `input_key`; they are packed in this order."""
    metrics: ListOf[MetricName] | Literal["auto"] = "auto"
    """Metrics besides loss and accuracy: mean_class_accuracy, kappa, within_one (class off by at
    most one), or functions of your own; auto: those usual for the data."""

    @model_validator(mode="after")
    def _fits_together(self) -> DataSpec:
        if self.is_outside:
            self._check_args()
        elif self.args:
            settings = file_settings(self.name) if is_path(self.name) else None
            if settings is None:
                raise fault(
                    f"data.args has no effect on {self.name!r}",
                    "; it belongs to tables, text, folders of images and sources of other packages",
                    at=("args",),
                )
            read_args(settings, self.args, section="data")
        if self.modalities is not None and not self.name.endswith(".npz"):
            raise fault(
                f"data.modalities names arrays of a .npz file, and {self.name!r} is none",
                at=("modalities",),
            )
        if self.distribution is not None and self.shard != "auto":
            raise fault(
                f"data.distribution decides who sees what, so 'shard: {self.shard}' cannot",
                "; leave one of the two out",
                at=("shard",),
            )
        return self

    @property
    def is_outside(self) -> bool:
        """Whether another package brings the source."""
        return not is_path(self.name) and self.name not in SOURCES.built_in

    def _check_args(self) -> None:
        kind = SOURCES.required(self.name)
        if kind.settings is not None:
            read_args(kind.settings, self.args, section="data")

    @property
    def settings(self) -> Spec:
        """The source's own settings, validated, with defaults filled in."""
        kind = SOURCES.find(self.name)
        assert kind.settings is not None, f"{self.name} has no settings"
        return read_args(kind.settings, self.args, section="data")

    @property
    def copies_bytes(self) -> int:
        """Disk space for copies of files by URL, in bytes."""
        return int(self.copies_gb * 1e9)

    @property
    def owns_samples(self) -> bool:
        """Whether each worker owns samples."""
        return self.distribution is not None and self.distribution.name != "stream"


DataField = Annotated[DataSpec, BeforeValidator(name_only)]


class BatchSpec(Spec):
    """How many samples make one step; exactly one of the two is given."""

    global_: Annotated[int, Field(gt=0)] | None = Field(default=None, alias="global")
    """Samples per step over all workers together."""
    per_worker: Annotated[int, Field(gt=0)] | None = None
    """Samples per step on each worker; the global batch is this times the number of workers."""
    shares: ListOf[Annotated[float, Field(gt=0)]] | None = None
    """Relative share of the global batch per worker, for unequal machines; default: equal."""
    accumulate: Annotated[int, Field(gt=0)] = 1
    """Forward and backward passes in which each worker computes its samples of a step: the update
    stays that of the whole global batch, and activations take that much less memory."""

    @model_validator(mode="after")
    def _one_of_two(self) -> BatchSpec:
        if (self.global_ is None) == (self.per_worker is None):
            raise fault(
                "batch takes exactly one of global and per_worker",
                ", such as {global: 128}",
                at=() if self.global_ is None else ("per_worker",),
            )
        if self.shares is not None and self.global_ is None:
            raise fault(
                "batch.shares divides a global batch",
                "; give 'global' instead of 'per_worker'",
                at=("shares",),
            )
        return self

    def global_size(self, num_workers: int) -> int:
        """Return the samples per step over all workers together."""
        if self.global_ is not None:
            return self.global_
        assert self.per_worker is not None
        return self.per_worker * num_workers
