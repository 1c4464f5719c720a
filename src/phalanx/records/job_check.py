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


_LARGE = 2048
"""A width or depth above which a built-in network may be too large for a machine."""


def needs_check(job: JobSpec) -> bool:
    """Tell whether a job brings parts of its own, or a network that may be too large.

    Built-in parts are known to fit each other.
    """
    if job.backend == "tensorflow" or job.program is not None:
        return False
    names = (
        *(job.model.name, job.data.name, job.schedule.name, job.loss.name),
        *(one.name for one in job.metrics),
        *job.data.augment,
        *(getattr(one, "topology", "") for one in job.strategy.strategies()),
    )
    own = any(IMPORT_PATH.match(name) is not None for name in names)
    is_file = is_path(job.data.name)
    live = job.optimizer.kind.live is not None
    return own or is_file or live or _is_large(job.model.model_dump())


def _is_large(settings: object) -> bool:
    """Tell whether any number among the settings of a network is large."""
    if isinstance(settings, dict):
        return any(map(_is_large, settings.values()))
    if isinstance(settings, tuple):
        return any(map(_is_large, settings))
    return isinstance(settings, int) and settings > _LARGE
