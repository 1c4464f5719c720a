"""Describe the scheduler that lends the machines of a pool: `scheduler` in a pool file.

Plain data. `SCHEDULERS` is an open table: a kind names the settings of a scheduler and the class
that asks it for machines (`pool.scheduler.Scheduler`), imported where a pool has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from phalanx.spec.base import Spec, name_only
from phalanx.spec.machine import matching
from phalanx.spec.registry import ByName, Registry

KubernetesName = Annotated[str, matching(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", "name in Kubernetes")]


class SchedulerSpec(Spec):
    """Scheduler that lends the machines."""

    name: str
    """Name of a scheduler, or `package.module:name` of a `SchedulerKind`."""


class SlurmSpec(SchedulerSpec):
    """Nodes of a Slurm allocation, reached with `srun`."""

    name: Literal["slurm"] = "slurm"
    """Slurm."""
    job: Annotated[int, Field(gt=0)] | None = None
    """Number of the Slurm job whose nodes are used; null: the one that `phalanx` runs in."""
    requeue: bool = False
    """Put the job back in Slurm's queue when SIGTERM ends the run, such as that of
    `sbatch --signal=B:TERM@60` before the time limit; the run continues when Slurm starts the job
    again."""


class KubernetesSpec(SchedulerSpec):
    """Pods that wait in a Kubernetes cluster, reached with `kubectl exec`."""

    name: Literal["kubernetes"] = "kubernetes"
    """Kubernetes."""
    selector: Annotated[str, matching(r"[^\s-].*", "label selector")]
    """Labels of the pods, such as `app=phalanx`; those that are running are the machines."""
    namespace: KubernetesName | None = None
    """Namespace of the pods; null: that of the context."""
    container: KubernetesName | None = None
    """Container of each pod; null: its default one."""
    context: Annotated[str, matching(r"[^\s-].*", "context")] | None = None
    """Context of your kubeconfig; null: the current one."""


@dataclass(frozen=True)
class SchedulerKind:
    """Describe a scheduler that lends machines."""

    name: str
    spec: type[SchedulerSpec]
    scheduler: str
    """Import path of its `pool.scheduler.Scheduler` class."""


_BUILT_IN = (SlurmSpec, KubernetesSpec)

SCHEDULERS: Registry[SchedulerKind] = Registry(
    "scheduler",
    SchedulerKind,
    group="phalanx.schedulers",
    built_in={
        "slurm": SchedulerKind("slurm", SlurmSpec, "phalanx.pool.slurm:SlurmScheduler"),
        "kubernetes": SchedulerKind(
            "kubernetes", KubernetesSpec, "phalanx.pool.kubernetes:KubernetesScheduler"
        ),
    },
)

SchedulerField = Annotated[
    SchedulerSpec,
    ByName(_BUILT_IN, table=lambda: SCHEDULERS),
    BeforeValidator(name_only),
]
"""The type of a pool's `scheduler`."""
