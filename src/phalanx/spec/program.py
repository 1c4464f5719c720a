"""Describe a job whose training code is the user's own script."""

from __future__ import annotations

import hashlib
import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from phalanx.spec.base import ListOf, Spec, Words, fault
from phalanx.spec.data import BatchSpec

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

_SAID_BY_SCRIPT = (
    "model",
    "data",
    "metrics",
    "batch",
    "optimizer",
    "schedule",
    "loss",
    "epochs",
    "precision",
)
PRECISION = "script"
"""Stands where a job's precision would: the script decides."""
EXCHANGE_S = 1800.0
"""Deadline of an exchange: other workers wait while a script evaluates on the chief alone."""


class TrialSpec(Spec):
    """A run that measures speed: it ends within the script's loop, and what follows is not run."""

    steps: Annotated[int, Field(gt=0)]
    """Updates after which it ends."""
    part: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of each batch that is computed."""


class ProgramSpec(Spec):
    """A script with `phalanx.session()` in it, run on every worker."""

    script: Annotated[str, AfterValidator(os.path.abspath), Words("a Python file")]
    """The Python file; seen from the job file."""
    args: ListOf[str] = ()
    """Its arguments."""
    shares: ListOf[Annotated[float, Field(gt=0)]] | None = None
    """Relative share of each batch per worker, for unequal machines; default: equal."""
    trial: TrialSpec | None = None
    """A short run that measures speed, as plans make them; null: the script runs to its end."""

    @property
    def name(self) -> str:
        """File name, for tables and messages."""
        return os.path.basename(self.script)


def check_program(job: JobSpec) -> None:
    """Refuse settings that the script decides, or that a script cannot have.

    Raises:
        PydanticCustomError: A `fault` with the place.
    """
    program = job.program
    if program is None:
        return
    shares = program.shares
    if shares is not None and len(shares) != job.workers:
        raise fault(
            f"program.shares takes one entry per worker ({job.workers}), not {len(shares)}",
            at=("program", "shares"),
        )
    for name in _SAID_BY_SCRIPT:
        if getattr(job, name) != type(job).model_fields[name].default:
            raise fault(
                f"{name} stands beside 'program', but {program.name} itself says this",
                f"; leave out '{name}'",
                at=(name,),
            )
    refused = {
        "backend": job.backend != "native",
        "infer": job.infer is not None,
        "evaluate": job.evaluate != "epoch",
    }
    for name, is_wrong in refused.items():
        if is_wrong:
            raise fault(f"'program' has no {name}", f"; leave out '{name}'", at=(name,))
    for strategy in job.strategy.strategies():
        if strategy.splits_model or strategy.in_process:
            raise fault(
                f"strategy '{strategy.name}' cannot run a script, which holds its whole model",
                "; use allreduce, local_sgd, parameter_server, switch or single",
                at=("strategy",),
            )
    if getattr(job.strategy, "handover", "live") == "restart":
        raise fault(
            "'handover: restart' begins new processes in the middle of a script",
            "; use 'handover: live'",
            at=("strategy", "handover"),
        )
    if program.trial is not None and job.strategy.uses_servers:
        raise fault(
            f"program.trial measures workers that step together, not '{job.strategy.name}'",
            "; leave out 'trial'",
            at=("program", "trial"),
        )


def script_digest(path: Path) -> str:
    """Identify the text of a script as it is now; empty: it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def complete_job(job: JobSpec, *, epochs: int, global_batch: int) -> JobSpec:
    """Return the job with what its script has declared; not what a job file may say."""
    shares = job.program.shares if job.program is not None else None
    batch = BatchSpec.model_validate({"global": global_batch, "shares": shares})
    return job.model_copy(update={"epochs": epochs, "batch": batch})
