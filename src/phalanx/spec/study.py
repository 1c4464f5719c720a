"""Describe a study: a matrix of jobs, their repeats, and the questions to the results.

Plain data with its checks. Jobs inside a study are checked cell by cell when the matrix is
expanded (`study.matrix`), because only a cell is a whole job; reading files is `study_file`'s.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from phalanx.spec.base import ListOf, Spec, Words, fault, name_only, number_as
from phalanx.spec.flow import quoted

_Whole = Literal["train_s", "elapsed_s", "samples_per_s", "startup_s", "evaluate_s"]
_Phase = Literal["input_s", "compute_s", "communication_s", "wait_s", "apply_s"]
_Loss = Literal["train_loss", "val_loss", "test_loss"]
_Accuracy = Literal["train_accuracy", "val_accuracy", "test_accuracy"]
Metric = Literal[_Whole, _Phase, "bytes_sent", "updates", _Loss, _Accuracy]
"""Numbers of a run's summary that a study can repeat, gate and compare by."""

PositiveInt = Annotated[int, Field(gt=0)]
Confidence = Annotated[float, Field(gt=0.5, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)min)?(?:(\d+(?:\.\d+)?)s)?")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")


def parse_duration(text: str) -> float | None:
    """Return the seconds in `90s`, `20min` or `1h30min`; None if the text is no time above zero."""
    found = _TIME.fullmatch(text.replace(" ", ""))
    if found is None:
        return None
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds or None


def _duration(text: str) -> str:
    if parse_duration(text) is None:
        raise fault(f"{quoted(text)} is no time", "; write 90s, 20min or 1h30min")
    return text


Duration = Annotated[
    str, AfterValidator(_duration), Words("a time such as 90s, 20min or 1h30min, as text")
]


def _width(value: str | float) -> str | float:
    size = value
    if isinstance(value, str):
        found = _PERCENT.fullmatch(value.strip())
        if found is None:
            raise fault(
                f"{quoted(value)} is no width",
                "; write 2 % for a share of the mean, or a number in the metric's unit",
            )
        size = float(found.group(1))
    if not float(size) > 0:
        raise fault(f"a half-width is above 0, not {quoted(value)}")
    return value


HalfWidth = Annotated[
    str | float, AfterValidator(_width), Words("a share of the mean such as 2 %, or a number")
]


class UntilSpec(Spec):
    """Stopping rule of a cell's repeats."""

    half_width: HalfWidth
    """Half the width of the confidence interval of the cell's mean: `2 %` of the mean, or a number
    in the metric's unit."""
    metric: Metric | None = None
    """Metric whose mean counts; null: the study's `metric`."""
    confidence: Confidence = 0.95
    """Confidence level of the interval."""

    @property
    def width(self) -> tuple[float, bool]:
        """The half-width as a number, and whether it is a share of the mean."""
        if isinstance(self.half_width, str):
            return float(self.half_width.strip().removesuffix("%")) / 100, True
        return float(self.half_width), False


class RepeatsSpec(Spec):
    """Repeats of each cell, each with another seed."""

    min: PositiveInt = 3
    """Minimum number of repeats."""
    max: PositiveInt | None = None
    """Maximum number of repeats; null: `min`, or 10 with `until`."""
    until: UntilSpec | None = None
    """Repeat after `min` until the interval is narrow enough."""

    @model_validator(mode="after")
    def _bounds(self) -> RepeatsSpec:
        if self.max is not None and self.max < self.min:
            raise fault(f"repeats.max is {self.max}, which is below min ({self.min})", at=("max",))
        if self.until is None and self.max not in (None, self.min):
            raise fault(
                "repeats.max has no effect without until",
                "; add 'until: {half_width: 2 %}' or leave it out",
                at=("max",),
            )
        if self.until is not None and self.most < 2:
            raise fault("an interval takes at least 2 runs", "; set max to 2 or more", at=("max",))
        return self

    @property
    def most(self) -> int:
        """The largest number of repeats that there can be."""
        if self.max is not None:
            return self.max
        return self.min if self.until is None else max(10, self.min)


class GateSpec(Spec):
    """What both sides must reach before their speeds are compared."""

    metric: Metric = "test_accuracy"
    """What must be equal."""
    tolerance: Annotated[float, Field(gt=0)]
    """The largest difference that counts as none, in the metric's unit; accuracy is a share of
    1."""
    baseline: str
    """Side that the others are compared with: a label, or `axis=label` where two axes have the
    label."""
    confidence: Confidence = 0.95
    """One minus the chance of calling unequal sides equal."""


class TargetSpec(Spec):
    """Target for time-to-accuracy."""

    val_accuracy: float | None = None
    """Accuracy on the validation set, after an epoch."""
    val_loss: float | None = None
    """Loss on the validation set, after an epoch."""
    train_accuracy: float | None = None
    """Accuracy over an epoch's training samples."""
    train_loss: float | None = None
    """Loss over an epoch's training samples."""
    test_accuracy: float | None = None
    """Accuracy on the test set, which is measured at the end only."""

    @property
    def values(self) -> dict[str, float]:
        """What was given."""
        return {name: float(value) for name, value in self if value is not None}


class RecommendSpec(Spec):
    """Preferences of the recommendation."""

    accuracy_loss: Annotated[float, Field(ge=0)] = 0.005
    """Loss of accuracy, as a share of 1, that counts as none."""
    prefer: Literal["time", "cost", "energy"] = "time"
    """Quantity to minimise."""
    price_per_hour: Annotated[float, Field(gt=0)] | None = None
    """Price of one machine per hour; needed for cost."""
    currency: str = "EUR"
    """Currency of the price."""

    @model_validator(mode="after")
    def _cost_needs_a_price(self) -> RecommendSpec:
        if self.prefer == "cost" and self.price_per_hour is None:
            raise fault(
                "recommend.prefer cost needs price_per_hour",
                ", such as 'price_per_hour: 0.20'",
                at=("prefer",),
            )
        return self


class ReportPartSpec(Spec):
    """A further part of the report."""

    name: str
    """Name of an installed one, or `package.module:name`."""
    file: str | None = None
    """A file for it, relative to this file, such as published figures; kept with the study."""


class StudySpec(Spec):
    """Many runs of related jobs."""

    study: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=60),
        Words("up to 60 of a-z, A-Z, 0-9, '_', '.' and '-', not starting with '.' or '-'"),
    ]
    """Name of the study and its directory."""
    title: str = ""
    """Heading of the report; default: the name."""
    job: dict[str, JsonValue] = {}
    """Base job of all cells: a job, or the path of a job file relative to this file."""
    axes: dict[str, JsonValue]
    """Axes of the matrix: a setting of the job with a list of values, or a free name with labels
    that each set one or more settings."""
    only: ListOf[dict[str, JsonValue]] = ()
    """Run only the cells that agree with one of these, such as `{strategy: PS}`."""
    exclude: ListOf[dict[str, JsonValue]] = ()
    """Leave out the cells that agree with one of these."""
    repeats: Annotated[RepeatsSpec, number_as("min")] | None = None
    """A number, or a mapping; default: one for each of `seeds`, else 3."""
    seeds: ListOf[Seed] | None = None
    """The seed of each repeat, the same in every cell; default: the job's seed and those after
    it."""
    budget: Duration | None = None
    """Start no run that would end later than this; null: no limit."""
    trial_limit: Duration | None = "1h"
    """End a run that has not moved for so long: no sample trained, nothing else begun. It counts as
    failed, and the study goes on; null: never."""
    pool: str | None = None
    """Pool file of the machines that runs take place on, relative to this file; null: this
    machine."""
    parallel: PositiveInt | Literal["auto"] = 1
    """Concurrent runs, each on separate cores; auto: as many as have a core for every worker and
    server. With a pool, each on separate machines with the same hardware; auto: one."""
    metric: Metric = "train_s"
    """Metric that cells are compared by."""
    gate: GateSpec | None = None
    """What both sides must reach before their speeds are compared."""
    target: TargetSpec = TargetSpec()
    """Target for time-to-accuracy."""
    report_parts: ListOf[Annotated[ReportPartSpec, BeforeValidator(name_only)]] = ()
    """Further parts of the report, by name."""
    recommend: RecommendSpec = RecommendSpec()
    """Preferences of the recommendation."""

    @model_validator(mode="after")
    def _enough_seeds(self) -> StudySpec:
        if self.seeds is None:
            return self
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds:
            raise fault("seeds must differ, and there must be one", at=("seeds",))
        if len(self.seeds) < self.planned_repeats.most:
            raise fault(
                f"seeds has {len(self.seeds)} entries for up to {self.planned_repeats.most} "
                "repeats",
                "; give one for each or leave seeds out",
                at=("seeds",),
            )
        return self

    @property
    def planned_repeats(self) -> RepeatsSpec:
        """Repeats of each cell, with the default filled in."""
        if self.repeats is not None:
            return self.repeats
        return RepeatsSpec(min=len(self.seeds)) if self.seeds else RepeatsSpec()
