"""Describe the partition of training samples over workers: one scheme with its settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from phalanx.spec.base import ListOf, Spec, fault, name_only

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
