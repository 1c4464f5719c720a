"""Describe injected faults, for studies and tests."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from phalanx.spec.base import Spec, fault

InnerShare = Annotated[float, Field(ge=0, le=1)]


class InjectSpec(Spec):
    """Slow one worker down, as if its machine were slower."""

    rank: Annotated[int, Field(ge=0)]
    """Which worker."""
    slow: Annotated[float, Field(gt=1)] = 2.0
    """Its steps take this many times as long."""
    begin: InnerShare = 0.0
    """Share of all samples after which it turns slow."""
    end: InnerShare = 1.0
    """Share of all samples after which it has recovered."""

    @model_validator(mode="after")
    def _in_order(self) -> InjectSpec:
        if self.end <= self.begin:
            raise fault(
                f"inject.end ({self.end:g}) is not after inject.begin ({self.begin:g})",
                at=("end",),
            )
        return self
