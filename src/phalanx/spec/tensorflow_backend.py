"""Check a job against what `backend: tensorflow` can express with tf.distribute's strategies.

A setting that is left out has TensorFlow's default; one without an equivalent is refused. Called by
`backend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.spec.base import fault
from phalanx.spec.data import AUGMENTATIONS

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec
    from phalanx.spec.strategy import StrategySpec

STRATEGIES = (
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
    "encrypt": (("auto", "off"), "its channels are open: set 'off' and use a trusted network"),
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
    if strategy.name not in STRATEGIES:
        raise fault(
            f"backend tensorflow has no strategy '{strategy.name}'",
            f"; it has {', '.join(STRATEGIES)}",
            at=("strategy",),
        )
    if strategy.updates_on_servers:
        _check_serving(strategy)
    elif getattr(strategy, "compression", "none") != "none":
        raise fault(
            "backend tensorflow sends gradients in full precision",
            "; leave 'compression' out",
            at=("strategy", "compression"),
        )


def _check_serving(strategy: StrategySpec) -> None:
    if getattr(strategy, "servers", 1) == "colocated":
        raise fault(
            "backend tensorflow has no servers inside its workers",
            "; set 'servers' to a number",
            at=("strategy", "servers"),
        )
    for key, (possible, instead) in _SERVING.items():
        value = getattr(strategy, key)
        if value not in possible:
            raise fault(
                f"backend tensorflow has no {key} '{value}'",
                f"; {instead}",
                at=("strategy", key),
            )
