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
from phalanx.spec.data import AUGMENTATIONS
from phalanx.spec.registry import Registry, load

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec
    from phalanx.spec.strategy import StrategySpec


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
            check="phalanx.spec.backend:check_tensorflow",
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
    if job.optimizer.kind.live is not None:
        raise fault(
            f"backend ddp has optimisers of the table only, not '{job.optimizer.name}'",
            "; set 'backend: native'",
            at=("optimizer",),
        )
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
    _check_open(job.strategy, "ddp")
    if _compression(job.strategy) not in _HOOKS:
        raise fault(
            f"backend ddp has no hook for compression '{_compression(job.strategy)}'",
            f"; set one of {', '.join(_HOOKS)}, or 'backend: native'",
            at=("strategy", "compression"),
        )
    value = getattr(job.strategy, "bucket_bytes", "auto")
    if value != "auto":
        raise fault(
            f"backend ddp has no strategy.bucket_bytes, but it is {value}",
            "; leave it out, or set 'backend: native' (ddp runs with torch's own buckets)",
            at=("strategy", "bucket_bytes"),
        )


# Compressions that torch has a communication hook for.
_HOOKS = ("none", "bf16", "powersgd")

_OF_TENSORFLOW = (
    "single",
    "allreduce",
    "parameter_server",
    "switch",
    "mirrored",
    "central_storage",
)

# Of `parameter_server`: the value that TensorFlow can express, and what it does instead.
_SERVING: dict[str, tuple[tuple[object, ...], str]] = {
    "consistency": (("async",), "its workers never wait for one another: set 'async'"),
    "compression": (("none",), "it sends full precision: leave it out"),
    "pull_compression": (("none",), "it sends full precision: leave it out"),
    "lr_scaling": (("none", "by_workers"), "it knows no staleness: set 'none' or 'by_workers'"),
    "delay_compensation": (("off",), "leave it out"),
    "overlap": ((False,), "leave it out"),
    "dispatch": (("dynamic",), "its coordinator gives work to free workers: set 'dynamic'"),
    "snapshot_s": ((30.0,), "its servers keep no copies: leave it out"),
}


def check_tensorflow(job: JobSpec) -> None:
    """Refuse what TensorFlow cannot express.

    Raises:
        PydanticCustomError: A sentence with the place, seen from the job.
    """
    strategy = job.strategy
    if strategy.resolved and getattr(strategy, "handover", "live") != "restart":
        raise fault(
            "backend tensorflow changes its strategy through a checkpoint and new processes",
            "; set 'handover: restart'",
            at=("strategy", "handover"),
        )
    for one in [phase.strategy for phase in strategy.resolved] or [strategy]:
        _check_strategy(one)
    _check_parts(job)
    if job.precision == "auto":
        raise fault(
            "backend tensorflow does not measure which precision is faster",
            "; set 'precision: fp32' or 'precision: bf16'",
            at=("precision",),
        )
    if job.profile is not None and strategy.uses_servers:
        raise fault(
            "backend tensorflow cannot profile the workers of a parameter server",
            "; leave 'profile' out, or set 'strategy: allreduce'",
            at=("profile",),
        )
    if job.profile is not None and job.profile.memory:
        raise fault(
            "backend tensorflow does not tell the memory of operators",
            "; leave 'profile.memory' out",
            at=("profile", "memory"),
        )
    if job.inject and strategy.uses_servers:
        raise fault(
            "backend tensorflow cannot slow the workers of a parameter server down",
            "; leave 'inject' out, or set 'strategy: allreduce'",
            at=("inject",),
        )


def _check_parts(job: JobSpec) -> None:
    """Refuse parts of other packages that are written for torch alone."""
    native = "; set 'backend: native'"
    if job.optimizer.kind.tensorflow is None:
        raise fault(
            f"optimizer '{job.optimizer.name}' has no form for backend tensorflow",
            native,
            at=("optimizer",),
        )
    if job.loss.kind.tensorflow is None:
        raise fault(
            f"loss '{job.loss.name}' has no form for backend tensorflow", native, at=("loss",)
        )
    outside = [name for name in job.data.augment if name not in AUGMENTATIONS.built_in]
    if outside:
        raise fault(
            f"augmentation '{outside[0]}' has no form for backend tensorflow",
            native,
            at=("data", "augment"),
        )


def _check_strategy(strategy: StrategySpec) -> None:
    if strategy.name not in _OF_TENSORFLOW:
        raise fault(
            f"backend tensorflow has no strategy '{strategy.name}'",
            f"; it has {', '.join(_OF_TENSORFLOW)}",
            at=("strategy",),
        )
    _check_open(strategy, "tensorflow")
    if strategy.updates_on_servers:
        _check_serving(strategy)
    elif _compression(strategy) != "none":
        raise fault(
            "backend tensorflow sends gradients in full precision",
            "; leave 'compression' out",
            at=("strategy", "compression"),
        )


def _check_open(strategy: StrategySpec, backend: str) -> None:
    if strategy.encryption == "always":
        raise fault(
            f"backend {backend} has no encrypt 'always'",
            "; its channels are open: leave it out and use a trusted network",
            at=("strategy", "encrypt"),
        )
    topology = getattr(strategy, "topology", "direct")
    if topology != "direct":
        raise fault(
            f"backend {backend} has no topology '{topology}'",
            "; it sums in its own way: leave it out, or set 'backend: native'",
            at=("strategy", "topology"),
        )


def _compression(strategy: StrategySpec) -> str:
    return str(getattr(getattr(strategy, "compression", None), "name", "none"))


def _check_serving(strategy: StrategySpec) -> None:
    if getattr(strategy, "servers", 1) == "colocated":
        raise fault(
            "backend tensorflow has no servers inside its workers",
            "; set 'servers' to a number",
            at=("strategy", "servers"),
        )
    for key, (possible, instead) in _SERVING.items():
        value = getattr(strategy, key)
        value = getattr(value, "name", value)
        if value not in possible:
            raise fault(
                f"backend tensorflow has no {key} '{value}'",
                f"; {instead}",
                at=("strategy", key),
            )
