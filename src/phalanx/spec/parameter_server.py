"""Describe the strategy `parameter_server`: servers own parameters; workers pull, compute, push.

Settings and their checks; `consistency.policy` implements the consistencies. A setting that would
have no effect in the chosen combination is refused, so that a job file never promises more than the
run keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from phalanx.spec.base import ListOf, fault
from phalanx.spec.compression import COMPRESSIONS, CompressionField, WholeSpec
from phalanx.spec.strategy import (
    Effect,
    EncryptField,
    Encryption,
    FailureLimit,
    ProcessCounts,
    StrategySpec,
)

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

Consistency = Literal["async", "bsp", "ssp", "dssp", "k_sync", "k_async"]
PositiveInt = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]

_STALENESS = 3
_RANGE = (3, 15)


class ParameterServerSpec(StrategySpec):
    """Servers own slices of the parameters and the optimiser state; workers pull and push."""

    name: Literal["parameter_server"] = "parameter_server"
    consistency: Consistency = "async"
    """async: every gradient is applied when it comes; bsp: one update from one gradient of every
    worker; ssp: async, but no worker is more than `staleness` steps ahead of the slowest; dssp: ssp
    whose bound moves within `staleness_range`; k_sync: the first `k` gradients of each version make
    an update, later ones are dropped; k_async: any `k` gradients make an update, without a wait."""
    staleness: Count = _STALENESS
    """ssp: steps that the fastest worker may be ahead of the slowest; 0 is bsp."""
    staleness_range: ListOf[Count] = _RANGE
    """dssp: least and greatest number of steps ahead; the waiting times decide in between."""
    k: PositiveInt | None = None
    """k_sync and k_async: gradients that make one update."""
    backup: Count = 0
    """bsp: workers that an update need not wait for; their late gradients are dropped."""
    servers: Annotated[int, Field(gt=0, le=256)] | Literal["colocated"] = 1
    """Processes that own parameters, or colocated: one inside each worker."""
    min_shard_bytes: PositiveInt = 256 * 1024
    """A server gets no less than this; small models use fewer servers."""
    max_shards: PositiveInt | None = None
    """Use at most this many servers for parameters; null: all of them."""
    compression: CompressionField = WholeSpec()
    """Format of pushed gradients, one of none, bf16 and int8; the rounding error is added to the
    next gradient."""
    pull_compression: Literal["none", "bf16"] = "none"
    """Format of pulled parameters; servers and the evaluator keep full precision."""
    lr_scaling: Literal["none", "by_workers", "by_staleness"] = "by_workers"
    """Learning rate of one update made of some of the workers' gradients. by_workers: times
    gradients per update over workers, so async takes lr/N; by_staleness: that, and less for
    gradients staler than usual; none: the full rate."""
    delay_compensation: Literal["off", "constant", "adaptive"] = "off"
    """DC-ASGD: correct a stale gradient by how far the parameters have moved since it was read."""
    delay_lambda: Annotated[float, Field(gt=0)] | None = None
    """Strength of the correction; null: 0.04 for constant, 2 for adaptive."""
    overlap: bool = False
    """Compute the next step while push and pull are on their way, on parameters one step older."""
    dispatch: Literal["static", "dynamic"] = "static"
    """Assignment of batches: static (shares fixed by rank) or dynamic (the coordinator assigns
    batches on request, so fast machines do more and a lost worker's batches go to others)."""
    encrypt: EncryptField = "auto"
    """Encryption of gradients and parameters in transit: always, never, or auto: between machines.
    Processes authenticate in any case."""
    max_failures: Count = 10
    """Processes that may be lost and replaced within `failure_window_s`; one more ends the run. A
    process that is lost again and again starts again after 1, 2, 4 ... 30 s."""
    failure_window_s: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds after which a loss is forgotten."""
    snapshot_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds between copies of each server's state, from which a lost server is restored."""
    updates_on_servers: ClassVar[bool] = True

    @model_validator(mode="after")
    def _has_effect(self) -> ParameterServerSpec:
        self._belongs("staleness", self.staleness != _STALENESS, "ssp")
        self._belongs("staleness_range", self.staleness_range != _RANGE, "dssp")
        self._belongs("k", self.k is not None, "k_sync", "k_async")
        self._belongs("backup", self.backup > 0, "bsp")
        compensated = self.delay_compensation != "off"
        self._belongs("delay_compensation", compensated, "async", "ssp", "dssp")
        self._belongs("overlap", self.overlap, "async", "ssp", "dssp", "k_async")
        scaled = self.lr_scaling == "by_staleness"
        self._belongs("lr_scaling", scaled, "async", "ssp", "dssp", "k_async", what="by_staleness")
        if self.delay_lambda is not None and not compensated:
            raise fault(
                "strategy.delay_lambda has no effect while delay_compensation is off",
                "; set 'delay_compensation: adaptive' or leave it out",
                at=("delay_lambda",),
            )
        return self

    @model_validator(mode="after")
    def _is_pushed(self) -> ParameterServerSpec:
        pushed = [name for name in COMPRESSIONS.built_in if COMPRESSIONS.find(name).pushed_bytes]
        if self.compression.name not in pushed:
            raise fault(
                f"parameter servers take no compression '{self.compression.name}'",
                f"; set one of {', '.join(pushed)}, or 'strategy: allreduce'",
                at=("compression",),
            )
        return self

    @model_validator(mode="after")
    def _complete(self) -> ParameterServerSpec:
        if self.consistency in ("k_sync", "k_async") and self.k is None:
            raise fault(
                f"consistency {self.consistency} needs k, the gradients per update",
                ", such as 'k: 2'",
                at=("consistency",),
            )
        bounds = self.staleness_range
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            raise fault(
                "strategy.staleness_range takes two rising numbers",
                ", such as [3, 15]",
                at=("staleness_range",),
            )
        if self.overlap and self.delay_compensation != "off":
            raise fault(
                "delay_compensation knows only the parameters of the last pull, but with overlap "
                "gradients are computed on those of the pull before",
                "; use one of the two",
                at=("overlap",),
            )
        if self.synchronous and (self.overlap or self.delay_compensation != "off"):
            raise fault(
                "ssp with staleness 0 is bsp: overlap and delay_compensation have no effect",
                at=("staleness",),
            )
        return self

    @property
    @override
    def encryption(self) -> Encryption:
        return self.encrypt

    @property
    @override
    def synchronous(self) -> bool:
        return (self.consistency == "bsp" and self.backup == 0) or (
            self.consistency == "ssp" and self.staleness == 0
        )

    @property
    @override
    def effect(self) -> Effect:
        if not self.synchronous:
            return "stale"
        return self.compression.effect

    @property
    @override
    def hands_out_batches(self) -> bool:
        return self.dispatch == "dynamic"

    @property
    @override
    def tolerated_failures(self) -> FailureLimit:
        return FailureLimit(self.max_failures, self.failure_window_s)

    @override
    def processes(self, num_workers: int) -> ProcessCounts:
        servers = 0 if self.servers == "colocated" else self.servers
        return ProcessCounts(workers=num_workers, servers=servers, evaluators=1)

    @override
    def num_servers(self, num_workers: int) -> int:
        return num_workers if self.servers == "colocated" else self.servers

    @override
    def label(self) -> str:
        return f"parameter_server {self.phase_label()}"

    @override
    def phase_label(self) -> str:
        text: str = self.consistency
        if self.consistency == "ssp":
            text += f" {self.staleness}"
        if self.k is not None:
            text += f" k={self.k}"
        if self.backup:
            text += f" backup={self.backup}"
        short = self.compression.label()
        return text + (f", {short}" if short != "none" else "")

    @override
    def equals_but_for_placement(self, other: StrategySpec) -> bool:
        return type(other) is type(self) and all(
            getattr(self, key) == getattr(other, key)
            for key in ParameterServerSpec.model_fields
            if key not in ("servers", "dispatch")
        )

    @override
    def check(self, job: JobSpec) -> None:
        self.check_workers(job.workers)
        if job.optimizer.clip_norm is not None and self.servers != 1:
            raise fault(
                "optimizer.clip_norm needs the whole gradient in one place",
                "; set 'strategy.servers: 1' or leave it out",
                at=("optimizer", "clip_norm"),
            )
        self.refuse_shards(job, "hands batches out by sample, not by")

    @override
    def check_distribution(self, job: JobSpec) -> None:
        distribution = job.data.distribution
        if distribution is not None and self.hands_out_batches == job.data.owns_samples:
            needed = "static" if self.hands_out_batches else "dynamic"
            raise fault(
                f"distribution {distribution.name} and 'dispatch: {self.dispatch}' "
                "contradict each other",
                f"; set 'strategy.dispatch: {needed}'",
                at=("data", "distribution"),
            )

    def check_workers(self, num_workers: int) -> None:
        """Refuse settings that do not fit the number of workers."""
        if self.consistency == "k_sync" and self.k is not None and self.k > num_workers:
            raise fault(
                f"strategy.k is {self.k}, but only {num_workers} workers can push to a version",
                f"; set k to {num_workers} or less",
                at=("strategy", "k"),
            )
        if self.backup >= num_workers:
            raise fault(
                f"strategy.backup is {self.backup}, but {num_workers} workers leave at most "
                f"{num_workers - 1} that need not be waited for",
                at=("strategy", "backup"),
            )

    def _belongs(self, field: str, used: bool, *homes: str, what: str = "") -> None:
        if used and self.consistency not in homes:
            setting = f"strategy.{field}" + (f" {what}" if what else "")
            raise fault(
                f"{setting} has no effect with consistency {self.consistency}",
                f"; it belongs to {' and '.join(homes)}",
                at=(field,),
            )
