"""What is measured beside the training itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phalanx.spec.base import Spec, Words, fault

Watts = Annotated[float, Field(ge=0)]


class ObserveSpec(Spec):
    """How processes and machines are watched while they train."""

    interval_s: Annotated[float, Field(ge=0.05)] | None = 1.0
    """Seconds between two samples of processor, memory, network and disk; null: none are taken."""
    baseline_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds for which the idle machine is watched before the work begins."""
    energy: Literal["auto", "rapl", "model", "off"] = "auto"
    """rapl: the processor's own counters; model: from `watts_idle` and `watts_full`; auto: the
    first of the two that there is."""
    watts_idle: Watts | None = None
    """What one machine draws when it does nothing."""
    watts_full: Watts | None = None
    """What one machine draws with all cores busy."""

    @model_validator(mode="after")
    def _model_needs_watts(self) -> ObserveSpec:
        idle, full = self.watts_idle, self.watts_full
        if (idle is None) != (full is None) or (self.energy == "model" and idle is None):
            raise fault(
                "the energy model needs both watts_idle and watts_full",
                ", such as 'watts_idle: 40' and 'watts_full: 95'",
                at=("watts_idle" if idle is None else "watts_full",),
            )
        if idle is not None and full is not None and full < idle:
            raise fault(
                f"watts_full ({full:g}) is below watts_idle ({idle:g})",
                "; a busy machine draws more",
                at=("watts_full",),
            )
        return self


class ProfileSpec(Spec):
    """Which epochs have the times of their operators taken, in every worker."""

    epochs: Annotated[
        str,
        Field(
            pattern=r"^[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?(,[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})?)*$"
        ),
        Words("epochs counted from 1, such as '3', '2-4' or '2-4,8'"),
    ] = "2"
    """Counted from 1. The first is seldom worth it: caches fill and memory is claimed."""
    memory: bool = False
    """Whether to note the memory that operators claim, which makes them slower."""

    @model_validator(mode="after")
    def _rising(self) -> ProfileSpec:
        for first, last in self.ranges():
            if last < first:
                raise fault(f"'{first}-{last}' is no range", f"; write '{last}-{first}'")
        return self

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """First and last epoch of each part, counted from 1."""
        parts = [part.split("-") for part in self.epochs.split(",")]
        return tuple((int(part[0]), int(part[-1])) for part in parts)

    def covers(self, epoch: int) -> bool:
        """Whether an epoch, counted from 0 as in records, is to be profiled."""
        return any(first <= epoch + 1 <= last for first, last in self.ranges())
