"""Describe a job whose training code is the user's own script."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from phalanx.spec.base import ListOf, Spec, Words, fault

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
EXCHANGE_S = 1800.0
"""Deadline of an exchange: other workers wait while a script evaluates on the chief alone."""


class ProgramSpec(Spec):
    """A script with `phalanx.session()` in it, run on every worker."""

    script: Annotated[str, AfterValidator(os.path.abspath), Words("a Python file")]
    """The Python file; seen from the job file."""
    args: ListOf[str] = ()
    """Its arguments."""

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
                "; use allreduce, local_sgd or single",
                at=("strategy",),
            )
        if strategy.updates_on_servers:
            raise fault(
                f"strategy '{strategy.name}' cannot run a script yet: its optimiser would have to "
                "run on servers",
                "; use allreduce or local_sgd",
                at=("strategy",),
            )
