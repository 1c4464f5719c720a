"""Whose engine runs a job, and what that engine can express; a job is checked against it.

A setting that a backend cannot express is refused in one sentence, so that a comparison between
backends never differs in more than the backend. Called by the job's own validator; imports no
framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from phalanx.spec.base import fault
from phalanx.spec.tensorflow_backend import check_tensorflow

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

Backend = Literal["native", "tensorflow", "ddp"]

MODULES: dict[Backend, str] = {
    "native": "phalanx.worker",
    "tensorflow": "phalanx.peer",
    "ddp": "phalanx.peer",
}
"""What a launcher starts as `python -m`, by backend."""

FORKABLE: frozenset[Backend] = frozenset({"native", "ddp"})
"""Whose framework starts no thread while it is imported; TensorFlow does."""


def check_backend(job: JobSpec) -> None:
    """Refuse what the job's backend cannot express.

    Raises:
        PydanticCustomError: A sentence with the place, seen from the job.
    """
    if job.backend == "ddp":
        _check_ddp(job)
    elif job.backend == "tensorflow":
        check_tensorflow(job)
    elif job.strategy.in_process:
        raise fault(
            f"strategy '{job.strategy.name}' is TensorFlow's own",
            "; set 'backend: tensorflow', or a strategy such as allreduce",
            at=("strategy",),
        )


def _check_ddp(job: JobSpec) -> None:
    if job.strategy.name not in ("single", "allreduce"):
        raise fault(
            f"backend ddp has no strategy '{job.strategy.name}'",
            "; set 'strategy: allreduce' or 'backend: native'",
            at=("strategy",),
        )
    for key, default in (("compression", "none"), ("bucket_bytes", "auto")):
        value = getattr(job.strategy, key, default)
        if value != default:
            raise fault(
                f"backend ddp has no strategy.{key}, but it is {value}",
                "; leave it out, or set 'backend: native' (ddp runs with torch's own buckets, "
                "uncompressed)",
                at=("strategy", key),
            )
