"""Describe how a synchronous run goes on when it loses workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from phalanx.spec.base import Spec, fault
from phalanx.spec.strategy import FailureLimit

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

# Survivors form their group before the machine is busy with a new process.
_RESTART_S = 1.0


class ElasticSpec(Spec):
    """Losses that a synchronous run bears: the survivors go on, and successors join them."""

    min: Annotated[int, Field(gt=0)] = 1
    """Workers below which the run waits for successors, for `deadlines.start_s`, and then ends."""
    max_failures: Annotated[int, Field(ge=0)] = 100
    """Losses within `failure_window_s` after which the run is given up."""
    failure_window_s: Annotated[float, Field(gt=0)] = 3600.0
    """Time after which a loss is forgotten."""

    @property
    def tolerated_failures(self) -> FailureLimit:
        """How often workers may be lost."""
        return FailureLimit(
            self.max_failures, self.failure_window_s, section="elastic", first_delay_s=_RESTART_S
        )


def check_elastic(job: JobSpec) -> None:
    """Refuse an elastic job that could not go on exactly after a loss.

    Raises:
        PydanticCustomError: A `fault` with the place, seen from the job.
    """
    if job.elastic is None:
        return
    if not job.strategy.can_regroup or job.backend != "native" or job.program is not None:
        who = f"strategy '{job.strategy.name}'"
        if job.program is not None:
            who = "a script's run"
        elif job.backend != "native":
            who = f"backend {job.backend}"
        raise fault(
            f"{who} cannot lose workers and go on", "; leave 'elastic' out", at=("elastic",)
        )
    if job.elastic.min > job.workers:
        raise fault(
            f"elastic.min is {job.elastic.min}, which is more than workers: {job.workers}",
            at=("elastic", "min"),
        )
    if job.strategy.effect != "exact":
        raise fault(
            "an elastic run sends gradients whole: what compression keeps would be lost with a "
            "worker",
            "; leave 'strategy.compression' out",
            at=("strategy", "compression"),
        )
    if job.data.owns_samples or job.data.shard in ("file", "off"):
        raise fault(
            "an elastic run deals out each batch over the workers that are there",
            "; set 'shard: auto', and no distribution that gives workers their own samples",
            at=("data",),
        )
    for name, wanted in (("precision", "fp32 or bf16"), ("profile", "null")):
        if getattr(job, name) not in (None, "fp32", "bf16"):
            raise fault(f"elastic runs take {name}: {wanted}", at=(name,))
