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
from phalanx.spec.quantity import Bytes
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


class RaySpec(SchedulerSpec):
    """Seats on a Ray cluster: cores that a placement group reserves, each with an actor."""

    name: Literal["ray"] = "ray"
    """Ray."""
    seats: Annotated[int, Field(gt=0)]
    """Number of seats; each is a machine of the pool, `seat-0` and so on."""
    cores: Annotated[float, Field(gt=0)] = 1.0
    """Cores of a seat, as Ray counts them."""
    memory: Bytes | None = None
    """Memory that Ray reserves for a seat; null: none."""
    address: Annotated[str, matching(r"[^\s-]\S*", "address of a cluster")] = "auto"
    """Address of the cluster, such as `192.0.2.10:6379`; `auto`: that of this machine."""
    placement: Literal["pack", "spread"] = "pack"
    """`pack`: seats on as few machines as possible; `spread`: on as many."""
    start_s: Annotated[float, Field(gt=0)] = 60.0
    """How long Ray may take to reserve and start the seats."""


class SparkSpec(SchedulerSpec):
    """Seats on a Spark cluster, each a job of one task."""

    name: Literal["spark"] = "spark"
    """Spark."""
    seats: Annotated[int, Field(gt=0)]
    """Number of seats; each is a machine of the pool, `seat-0` and so on."""
    cores: Annotated[int, Field(gt=0)] = 1
    """Cores of a seat, as Spark counts them (`spark.task.cpus`)."""
    memory: Bytes | None = None
    """Memory that the processes of a seat may take, outside of Spark's heap; null: no limit of
    ours."""
    master: Annotated[str, matching(r"[^\s-]\S*", "master of a Spark cluster")] | None = None
    """Master of the cluster, such as `spark://192.0.2.10:7077`; null: the session that your
    program has open, or the master that `spark-submit` or `spark-defaults.conf` sets."""
    settings: dict[str, str] = {}
    """Settings of the session that is opened, such as `spark.executor.memory: 2g`."""
    address: Annotated[str, matching(r"[^\s-]\S*", "address")] | None = None
    """Address by which executors reach this machine; null: `spark.driver.host`."""
    start_s: Annotated[float, Field(gt=0)] = 60.0
    """How long Spark may take to offer and start the seats."""


@dataclass(frozen=True)
class SchedulerKind:
    """Describe a scheduler that lends machines."""

    name: str
    spec: type[SchedulerSpec]
    scheduler: str
    """Import path of its `pool.scheduler.Scheduler` class."""


_BUILT_IN = (SlurmSpec, KubernetesSpec, RaySpec, SparkSpec)

SCHEDULERS: Registry[SchedulerKind] = Registry(
    "scheduler",
    SchedulerKind,
    group="phalanx.schedulers",
    built_in={
        "slurm": SchedulerKind("slurm", SlurmSpec, "phalanx.pool.slurm:SlurmScheduler"),
        "kubernetes": SchedulerKind(
            "kubernetes", KubernetesSpec, "phalanx.pool.kubernetes:KubernetesScheduler"
        ),
        "ray": SchedulerKind("ray", RaySpec, "phalanx.pool.ray_seats:RayScheduler"),
        "spark": SchedulerKind("spark", SparkSpec, "phalanx.pool.spark_seats:SparkScheduler"),
    },
)

SchedulerField = Annotated[
    SchedulerSpec,
    ByName(_BUILT_IN, table=lambda: SCHEDULERS),
    BeforeValidator(name_only),
]
"""The type of a pool's `scheduler`."""
