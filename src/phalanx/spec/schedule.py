"""Describe the learning-rate schedule: a curve over the samples of a run.

`SCHEDULES` is an open table: besides the built-in curves, a job may name a function of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from phalanx.errors import EngineError
from phalanx.spec.base import ListOf, Spec, fault, name_only
from phalanx.spec.registry import ByName, Registry, load

PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
# Shares such as 0.7 are not exact in binary; counts of samples are whole, so this cannot mislead.
_ROUNDING = 1e-6


class ScheduleSpec(Spec):
    """Settings of every schedule."""

    if TYPE_CHECKING:
        # Every kind declares its own; here it would change the order of the settings.
        name: str
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all samples over which the rate climbs linearly from `warmup_from` times the
    peak."""
    warmup_from: Share = 0.1
    """Where the climb starts, as a share of the peak rate."""

    def decay(self, samples_seen: int, *, total_samples: int, samples_per_epoch: int) -> float:
        """Return the factor on the rate after so many samples, without the climb of the warm-up."""
        return 1.0

    def drops(self, epochs: int) -> tuple[float, ...]:
        """Return the shares of a job at which the rate drops at once; none for smooth curves."""
        return ()

    def share_at_factor(self, factor: float) -> float | None:
        """Return the share of a job after which the rate is at most so low; None: never known."""
        return None


class ConstantSpec(ScheduleSpec):
    """The peak rate throughout."""

    name: Literal["constant"] = "constant"


class MilestonesSpec(ScheduleSpec):
    """Multiply the rate by a factor at chosen moments."""

    name: Literal["milestones"] = "milestones"
    at: ListOf[Annotated[float, Field(gt=0, lt=1)]] = ()
    """Moments as shares of all samples, such as [0.5, 0.75]."""
    at_epochs: ListOf[PositiveFloat] = ()
    """Moments as epochs, such as [80, 130]; give `at` or this."""
    factor: Share = 0.1
    """What the rate is multiplied by at each moment."""

    @model_validator(mode="after")
    def _one_kind_of_moment(self) -> MilestonesSpec:
        if bool(self.at) == bool(self.at_epochs):
            raise fault(
                "schedule 'milestones' takes exactly one of at and at_epochs",
                ", such as {at: [0.5, 0.75]} or {at_epochs: [80, 130]}",
            )
        moments, key = (self.at, "at") if self.at else (self.at_epochs, "at_epochs")
        if list(moments) != sorted(set(moments)):
            raise fault(f"schedule.{key} must rise, not {list(moments)}", at=(key,))
        return self

    def decay(self, samples_seen: int, *, total_samples: int, samples_per_epoch: int) -> float:
        """Return `factor` to the power of the moments passed."""
        moments = [share * total_samples for share in self.at]
        moments += [epoch * samples_per_epoch for epoch in self.at_epochs]
        return self.factor ** sum(samples_seen >= moment - _ROUNDING for moment in moments)

    def drops(self, epochs: int) -> tuple[float, ...]:
        """Return the moments as shares of a job of so many epochs."""
        return self.at or tuple(epoch / epochs for epoch in self.at_epochs)


class CosineSpec(ScheduleSpec):
    """Half a cosine from the peak to `floor` times the peak."""

    name: Literal["cosine"] = "cosine"
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where the curve ends, as a share of the peak rate."""

    def decay(self, samples_seen: int, *, total_samples: int, samples_per_epoch: int) -> float:
        """Return the height of the wave, which begins after the warm-up."""
        warmup = self.warmup * total_samples
        span = max(total_samples - warmup, 1)
        progress = min(max((samples_seen - warmup) / span, 0.0), 1.0)
        wave = (1 + math.cos(math.pi * progress)) / 2
        return self.floor + (1 - self.floor) * wave

    def share_at_factor(self, factor: float) -> float | None:
        """Return where the wave has come down to `factor`."""
        if self.floor >= factor:
            return None
        wave = (factor - self.floor) / (1 - self.floor)
        progress = math.acos(2 * wave - 1) / math.pi
        return self.warmup + (1 - self.warmup) * progress


class FunctionScheduleSpec(ScheduleSpec):
    """A curve that a function of another package computes."""

    name: str
    """`package.module:function`; takes the samples seen, and `total_samples`, `samples_per_epoch`
    and `args` by name, and returns the factor on the peak rate."""
    args: dict[str, JsonValue] = {}
    """Keyword arguments for the function."""

    def decay(self, samples_seen: int, *, total_samples: int, samples_per_epoch: int) -> float:
        """Return what the function does.

        Raises:
            EngineError: It failed, or returned no number of at least 0.
        """
        function = cast("Callable[..., object]", load(self.name))
        try:
            factor = function(
                samples_seen,
                total_samples=total_samples,
                samples_per_epoch=samples_per_epoch,
                **self.args,
            )
        except Exception as error:  # foreign code may raise anything; the cause stays attached
            raise EngineError(
                f"schedule '{self.name}' failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise EngineError(
                f"schedule '{self.name}' returned {factor!r} after {samples_seen} samples, not a "
                "number of at least 0"
            )
        return float(factor)


@dataclass(frozen=True)
class ScheduleKind:
    """Describe a schedule."""

    name: str
    spec: type[ScheduleSpec]


_BUILT_IN = (ConstantSpec, MilestonesSpec, CosineSpec)

SCHEDULES: Registry[ScheduleKind] = Registry(
    "schedule",
    ScheduleKind,
    group="phalanx.schedules",
    built_in={
        "constant": ScheduleKind("constant", ConstantSpec),
        "milestones": ScheduleKind("milestones", MilestonesSpec),
        "cosine": ScheduleKind("cosine", CosineSpec),
    },
    adapt=lambda path, _: ScheduleKind(path, FunctionScheduleSpec),
)

ScheduleField = Annotated[
    ScheduleSpec,
    ByName(_BUILT_IN, table=lambda: SCHEDULES),
    BeforeValidator(name_only),
]
"""The type of a job's `schedule`."""
