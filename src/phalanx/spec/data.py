"""Which data, how it is split, shared out over workers, augmented and fed; and the batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, Words, fault, name_only
from phalanx.spec.distribution import DistributionField
from phalanx.spec.generate import ScenesSpec, SpectraSpec
from phalanx.spec.names import did_you_mean

Augmentation = Literal["flip", "pad-crop"]
ShardPolicy = Literal["auto", "sample", "file", "off"]
MetricName = Literal[
    "accuracy",
    "mean_class_accuracy",
    "kappa",
    "within_one",
    "nmad",
    "outliers",
    "catastrophic",
]
BUILT_IN_DATA = (
    "digits",
    "mnist",
    "fashion-mnist",
    "kmnist",
    "cifar10",
    "redshift",
    "land-cover",
)
DATA_SUFFIXES = (".npz", ".parquet")


def is_path(name: str) -> bool:
    """Whether a data name is the user's own file or folder; it need not exist on this machine."""
    return "/" in name or name.endswith(DATA_SUFFIXES)


def _built_in_or_path(name: str) -> str:
    if name in BUILT_IN_DATA or is_path(name):
        return name
    raise fault(
        f"unknown data {name!r}",
        f"{did_you_mean(name, BUILT_IN_DATA)} (built in: {', '.join(BUILT_IN_DATA)}; "
        "or a path that contains '/' or ends in .npz or .parquet)",
    )


DataName = Annotated[
    str, AfterValidator(_built_in_or_path), Words("a built-in data set or a path, as text")
]


class DataSpec(Spec):
    """A data set and the road from it to batches."""

    name: DataName
    """digits, mnist, fashion-mnist, kmnist, cifar10; redshift and land-cover, which are made on the
    spot; or the path of a .npz or .parquet file or folder; a path contains `/` or ends in .npz or
    .parquet, seen from where `phalanx` is called."""
    spectra: SpectraSpec | None = None
    """What `redshift` consists of; null: all defaults."""
    scenes: ScenesSpec | None = None
    """What `land-cover` consists of; null: all defaults."""
    augment: ListOf[Augmentation] = ()
    """Random changes to training images: flip (left-right), pad-crop (pad by 4, crop back)."""
    shard: ShardPolicy = "auto"
    """Who sees what: sample (every batch is cut over the workers), file (each worker owns whole
    files), off (each worker sees everything), auto (file if the source has at least as many files
    as workers and no shuffle across files is asked for, else sample)."""
    distribution: DistributionField | None = None
    """How the samples lie on the workers, such as iid, by_class or {name: dirichlet, alpha: 0.1};
    null: nobody owns samples and `shard` decides."""
    shuffle: bool = True
    """A new order each epoch, depending only on seed and epoch."""
    normalize: Literal["standard", "unit", "none"] = "standard"
    """standard: zero mean and unit deviation per channel; unit: 0 to 1; none: raw values."""
    validation: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = "auto"
    """Share of the training samples held out; auto: 6,000 of 60,000 for the MNIST family, else
    10 %."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """Use only this many training samples (before the validation split), for quick trials."""
    prefetch: Annotated[int, Field(ge=0)] = 2
    """Batches prepared ahead of training in the background; 0 prepares them in line."""
    directory: str | None = None
    """Where the files lie; default: the data directory (`PHALANX_DATA`, else the user's cache)."""
    input_key: str = "x"
    """Column or array that holds the inputs, for .npz and .parquet."""
    target_key: str = "y"
    """Column or array that holds the labels, for .npz and .parquet."""
    modalities: ListOf[str] | None = None
    """Arrays of a .npz file, one per sensor and each (samples, channels, height, width), that make
    up the samples instead of `input_key`; they are packed in this order."""
    metrics: ListOf[MetricName] | Literal["auto"] = "auto"
    """By what a model is judged, besides loss and accuracy: mean_class_accuracy, kappa, and for
    classes that are ranges of a number within_one (class off by at most one), nmad, outliers,
    catastrophic; auto: what is usual for the data."""

    @model_validator(mode="after")
    def _made_by_its_own_generator(self) -> DataSpec:
        for section, home in (("spectra", "redshift"), ("scenes", "land-cover")):
            if getattr(self, section) is not None and self.name != home:
                raise fault(
                    f"data.{section} has no effect on {self.name!r}",
                    f"; it belongs to the data '{home}'",
                    at=(section,),
                )
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
    def owns_samples(self) -> bool:
        """Whether each worker has samples of its own."""
        return self.distribution is not None and self.distribution.name != "stream"

    @property
    def resolved_spectra(self) -> SpectraSpec:
        """What `redshift` consists of."""
        return self.spectra or SpectraSpec()

    @property
    def resolved_scenes(self) -> ScenesSpec:
        """What `land-cover` consists of."""
        return self.scenes or ScenesSpec()


DataField = Annotated[DataSpec, BeforeValidator(name_only)]


class BatchSpec(Spec):
    """How many samples make one step; exactly one of the two is given."""

    global_: Annotated[int, Field(gt=0)] | None = Field(default=None, alias="global")
    """Samples per step over all workers together."""
    per_worker: Annotated[int, Field(gt=0)] | None = None
    """Samples per step on each worker; the global batch is this times the number of workers."""
    shares: ListOf[Annotated[float, Field(gt=0)]] | None = None
    """Relative share of the global batch per worker, for unequal machines; default: equal."""

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
        """Samples per step over all workers together."""
        if self.global_ is not None:
            return self.global_
        assert self.per_worker is not None
        return self.per_worker * num_workers
