"""Describe the synchronous strategies: single, all-reduce, local SGD, and TensorFlow's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from phalanx.spec.base import Spec, fault
from phalanx.spec.compression import CompressionField, CompressionSpec, WholeSpec
from phalanx.spec.strategy import Effect, EncryptField, Encryption, StrategySpec
from phalanx.spec.topology import TopologyName

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec


class SingleSpec(StrategySpec):
    """One worker, no exchange: the reference that every other strategy is checked against."""

    name: Literal["single"] = "single"
    is_single: ClassVar[bool] = True

    @property
    @override
    def effect(self) -> Effect:
        return "exact"

    @override
    def check(self, job: JobSpec) -> None:
        if job.workers != 1:
            raise fault(
                f"strategy 'single' takes 1 worker, not {job.workers}",
                "; set 'workers: 1' or a strategy such as allreduce",
                at=("workers",),
            )


class AllreduceSpec(StrategySpec):
    """Every worker has the whole model; gradients are summed over all workers in every step."""

    name: Literal["allreduce"] = "allreduce"
    compression: CompressionField = WholeSpec()
    """How gradients are shortened on their way, for slow links. What is left out of a gradient is
    kept and added to the next one."""
    bucket_bytes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    """Gradient bytes that travel together while backward goes on; auto: a quarter of the model,
    at least 512 KiB and at most 25 MiB."""
    topology: TopologyName = "direct"
    """Along which connections gradients are summed between machines: direct (each worker adds a
    slice for all), ring, tree, butterfly, hierarchical (within machines first), or auto: the one
    that short trials before the first step find fastest. On one machine Gloo's ring is used for
    direct and auto, unless everything is encrypted."""
    encrypt: EncryptField = "auto"
    """Encryption of gradients and parameters in transit: always, never, or auto: between machines.
    Processes authenticate in any case."""
    measures_gradient_noise: ClassVar[bool] = True
    can_regroup: ClassVar[bool] = True

    @property
    @override
    def encryption(self) -> Encryption:
        return self.encrypt

    @property
    @override
    def needs_own_links(self) -> bool:
        return super().needs_own_links or self.topology not in ("direct", "auto")

    @property
    @override
    def effect(self) -> Effect:
        return self.compression.effect

    @property
    @override
    def bucket_size(self) -> int | None:
        return None if self.bucket_bytes == "auto" else self.bucket_bytes

    @override
    def label(self) -> str:
        return ", ".join(["allreduce", *_told(self.compression, self.topology)])

    @override
    def check(self, job: JobSpec) -> None:
        self.compression.check(job)


class OuterStepSpec(Spec):
    """The outer optimiser of DiLoCo: a Nesterov step along the averaged change of parameters."""

    lr: Annotated[float, Field(gt=0)] = 0.7
    """Outer learning rate; 1 with momentum 0 is plain averaging."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Outer Nesterov momentum."""


class LocalSgdSpec(StrategySpec):
    """Workers step alone and average their parameters every few steps."""

    name: Literal["local_sgd"] = "local_sgd"
    every: Annotated[int, Field(gt=0)] = 8
    """Steps between averagings (H)."""
    average_moments: bool = True
    """Average the optimiser's moments with the parameters; false keeps each worker's own, which
    saves traffic and is what DiLoCo does."""
    outer: OuterStepSpec | None = None
    """An outer Nesterov step instead of plain averaging."""
    compression: CompressionField = WholeSpec()
    """How the changes of parameters are shortened on their way; moments are sent whole. What is
    left out of a change is kept and added to the next one."""
    topology: TopologyName = "direct"
    """Along which connections parameters are summed between machines, as under allreduce."""
    encrypt: EncryptField = "auto"
    """Encryption of parameters in transit: always, never, or auto: between machines.
    Processes authenticate in any case."""
    applies_before_exchange: ClassVar[bool] = True

    @property
    @override
    def encryption(self) -> Encryption:
        return self.encrypt

    @property
    @override
    def needs_own_links(self) -> bool:
        return super().needs_own_links or self.topology not in ("direct", "auto")

    @property
    @override
    def exchange_every(self) -> int:
        return self.every

    @override
    def label(self) -> str:
        named = f"local_sgd every {self.every}"
        return ", ".join([named, *_told(self.compression, self.topology)])

    @override
    def check(self, job: JobSpec) -> None:
        self.compression.check(job)


def _told(compression: CompressionSpec, topology: str) -> list[str]:
    """Return how it is exchanged, as far as that is not what is usual."""
    short = [compression.label()] if compression.label() != "none" else []
    return [*short, f"topology {topology.rpartition(':')[2]}"] if topology != "direct" else short


class MirroredSpec(StrategySpec):
    """One process with a replica per worker: TensorFlow's MirroredStrategy."""

    name: Literal["mirrored"] = "mirrored"
    in_process: ClassVar[bool] = True


class CentralStorageSpec(StrategySpec):
    """The same with variables kept once: TensorFlow's CentralStorageStrategy."""

    name: Literal["central_storage"] = "central_storage"
    in_process: ClassVar[bool] = True
