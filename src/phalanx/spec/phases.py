"""Derive the job of one phase of a switch: the same job with that phase's strategy."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.spec.data import BatchSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import SwitchSpec

LOOSENED = -1
"""Stands for the looser strategy of the straggler reaction among the numbers of phases."""


def strategy_of(job: JobSpec, phase: int) -> StrategySpec:
    """Return the strategy of a phase of a job that switches."""
    switch = job.strategy
    assert isinstance(switch, SwitchSpec)
    if phase == LOOSENED:
        assert switch.straggler is not None
        return switch.straggler.loosen_to
    return switch.resolved[phase].strategy


def phase_job(job: JobSpec, phase: int, shares: Sequence[float] = ()) -> JobSpec:
    """Return the job of a phase.

    Args:
        job: One that switches.
        phase: Which.
        shares: Relative share of the global batch per worker; empty: as the job says.
    """
    changes: dict[str, object] = {"strategy": strategy_of(job, phase)}
    if shares:
        changes["batch"] = BatchSpec.model_validate(
            {"global": job.global_batch, "shares": tuple(shares)}
        )
    return job.model_copy(update=changes)
