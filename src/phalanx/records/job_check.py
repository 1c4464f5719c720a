"""Define what the check of a job before its first process is asked, and what it answers.

`launch.job_check` asks, in the process of the command; `worker.job_check` answers, in a process
that imports the framework and the user's code.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.spec.data import is_path
from phalanx.spec.job import JobSpec
from phalanx.spec.registry import IMPORT_PATH


class JobQuestion(msgspec.Struct, kw_only=True):
    """A job, and where its data is."""

    job: dict[str, Any]
    data_root: str
    cache_root: str


class JobAnswer(msgspec.Struct, kw_only=True):
    """What the check found."""

    fault: str | None = None
    """Why the job cannot run, in one sentence; None: nothing was found."""
    traceback: str = ""
    """Of the user's code, where the fault is in it."""
    num_parameters: int = 0
    num_samples: int = 0
    """Training samples."""
    notes: list[str] = []
    """What is allowed, and probably not meant."""


def needs_check(job: JobSpec) -> bool:
    """Tell whether a job brings a network, data, optimiser or schedule of its own.

    Built-in ones are known to fit.
    """
    if job.backend == "tensorflow":
        return False
    names = (job.model.name, job.data.name, job.schedule.name)
    own = any(IMPORT_PATH.match(name) is not None for name in names)
    return own or is_path(job.data.name) or job.optimizer.kind.live is not None
