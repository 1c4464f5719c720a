"""List the backends that can run a job, and check a job against what its backend can express.

A setting that a backend cannot express is refused in one sentence, so that a comparison between
backends never differs in more than the backend. Called by the job's validator; imports no
framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import AfterValidator

from phalanx.spec.base import Words, fault
from phalanx.spec.registry import Registry, load

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec


@dataclass(frozen=True)
class BackendKind:
    """Describe an engine that can run jobs.

    Import paths are `package.module:function`, loaded where they are used.
    """

    name: str
    check: str
    """Takes the job; refuses by `phalanx.spec.base.fault` what the engine cannot express."""
    role: str
    """Takes the process's context and does its part of the run, in every process of a job."""
    module: str = "phalanx.backends"
    """Module that a launcher starts with `python -m`."""
    can_fork: bool = False
    """Whether its framework starts no thread while it is imported; TensorFlow does."""
    opens_ports: bool = False
    """Whether its processes listen on all interfaces and obey everyone who connects."""


BACKENDS: Registry[BackendKind] = Registry(
    "backend",
    BackendKind,
    group="phalanx.backends",
    built_in={
        "native": BackendKind(
            "native",
            check="phalanx.spec.backend:check_native",
            role="phalanx.worker.roles:run_role",
            module="phalanx.worker",
            can_fork=True,
        ),
        "tensorflow": BackendKind(
            "tensorflow",
            check="phalanx.spec.tensorflow_backend:check_tensorflow",
            role="phalanx.backends.tensorflow.roles:run_tensorflow_role",
            opens_ports=True,
        ),
        "ddp": BackendKind(
            "ddp",
            check="phalanx.spec.backend:check_ddp",
            role="phalanx.backends.ddp.roles:run_ddp_role",
            can_fork=True,
        ),
    },
)
Backend = (
    Literal["native", "tensorflow", "ddp"]
    | Annotated[str, AfterValidator(BACKENDS.checked_name), Words("package.module:name")]
)


def check_backend(job: JobSpec) -> None:
    """Refuse what the job's backend cannot express.

    Raises:
        PydanticCustomError: A sentence with the place, seen from the job.
    """
    check = cast("Callable[[JobSpec], None]", load(BACKENDS.required(job.backend).check))
    check(job)


def check_native(job: JobSpec) -> None:
    """Refuse the strategies that only TensorFlow has."""
    if job.strategy.in_process:
        raise fault(
            f"strategy '{job.strategy.name}' is TensorFlow's own",
            "; set 'backend: tensorflow', or a strategy such as allreduce",
            at=("strategy",),
        )


def check_ddp(job: JobSpec) -> None:
    """Refuse what torch's DistributedDataParallel cannot express."""
    if job.optimizer.kind.torch is None:
        raise fault(
            f"optimizer '{job.optimizer.name}' has no form for torch.optim, which backend ddp "
            "needs",
            "; set 'backend: native'",
            at=("optimizer",),
        )
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
