"""Describe a training strategy: the base class of its settings, and what callers may ask of it.

A strategy's spec answers every question that depends on its settings, so that no caller has to know
which strategies exist. Its implementation is named in its `StrategyKind` (`spec.kinds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from phalanx.spec.base import Spec, fault

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec
    from phalanx.spec.switch import PhaseSpec

Effect = Literal["exact", "rounded", "lossy", "stale"]
"""Effect on the result: `exact` gives the numbers of one machine but for summation order, `rounded`
sends or computes in fewer bits, `lossy` sends less and makes up for it later, `stale` uses older
parameters or replicas that drift apart."""


Encryption = Literal["auto", "always", "never"]
_STRICTEST_FIRST: tuple[Encryption, ...] = ("always", "auto", "never")


def _spelled_before(value: object) -> object:
    # Manifests of earlier runs have these words.
    return {"on": "always", "off": "never"}.get(value, value) if isinstance(value, str) else value


EncryptField = Annotated[Encryption, BeforeValidator(_spelled_before)]


@dataclass(frozen=True)
class ProcessCounts:
    """Count the processes of a run by role."""

    workers: int
    servers: int = 0
    """Parameter servers that are separate processes, not threads of workers."""
    evaluators: int = 0

    @property
    def total(self) -> int:
        """Number of all processes."""
        return self.workers + self.servers + self.evaluators


@dataclass(frozen=True, order=True)
class FailureLimit:
    """Limit the losses of processes that are replaced: so many within a time, not in all."""

    count: int
    window_s: float
    section: str = "strategy"
    """Of the job, where both are set."""
    first_delay_s: float = 0.0
    """Before the successor of a process that is lost for the first time starts."""


class StrategySpec(Spec):
    """Settings of a strategy. Subclass it for a new one and override what differs.

    The defaults describe synchronous data parallelism without servers: every worker holds the whole
    model and waits for all others in every step.
    """

    name: str
    """Which kind: its name in the table, or `package.module:NAME`."""

    in_process: ClassVar[bool] = False
    """Whether all workers are replicas inside one process."""
    is_single: ClassVar[bool] = False
    """Whether it takes exactly one worker."""
    splits_model: ClassVar[bool] = False
    """Whether each worker holds a part of the model and sees all samples of a batch."""
    updates_on_servers: ClassVar[bool] = False
    """Whether servers own the parameters and apply the updates."""
    applies_before_exchange: ClassVar[bool] = False
    """Whether a worker applies its own update first and then exchanges parameters."""
    measures_gradient_noise: ClassVar[bool] = False
    """Whether its step can measure the gradient noise scale, which `at: auto` of a switch needs."""

    can_regroup: ClassVar[bool] = False
    """Whether nothing changes before all workers' sums are complete, so that survivors of a loss
    can do a step again: what `elastic` needs."""

    @property
    def synchronous(self) -> bool:
        """Whether every worker waits for all others when it exchanges."""
        return True

    @property
    def exchange_every(self) -> int:
        """Steps between two exchanges."""
        return 1

    @property
    def effect(self) -> Effect:
        """Effect on the result; a strategy that does not say counts as `stale`."""
        return "stale"

    @property
    def bucket_size(self) -> int | None:
        """Bytes of gradient that travel together; None: the engine decides."""
        return None

    @property
    def hands_out_batches(self) -> bool:
        """Whether batches are assigned to free workers, instead of in fixed shares."""
        return False

    @property
    def tolerated_failures(self) -> FailureLimit:
        """How often processes may be lost and replaced."""
        return FailureLimit(0, 0.0)

    @property
    def encryption(self) -> Encryption:
        """Whether gradients and parameters are encrypted in transit; auto: beyond this machine."""
        said = {one.encryption for one in self.strategies() if one is not self}
        return next((one for one in _STRICTEST_FIRST if one in said), "auto")

    def encrypts(self, *, beyond_this_machine: bool) -> bool:
        """Return whether gradients and parameters are encrypted in transit."""
        return self.encryption == "always" or (self.encryption == "auto" and beyond_this_machine)

    @property
    def needs_own_links(self) -> bool:
        """Whether workers of one machine need links of their own, too, instead of Gloo's."""
        others = [one.needs_own_links for one in self.strategies() if one is not self]
        return self.encryption == "always" or any(others)

    @property
    def uses_servers(self) -> bool:
        """Whether servers own parameters at any time of the run."""
        return any(one.updates_on_servers for one in self.strategies())

    @property
    def resolved(self) -> tuple[PhaseSpec, ...]:
        """The phases of a strategy that changes during the run; empty for all others."""
        return ()

    def strategies(self) -> tuple[StrategySpec, ...]:
        """Return every strategy that may run: itself, or those of its phases."""
        return (self,)

    def processes(self, num_workers: int) -> ProcessCounts:
        """Count the processes that a run with so many workers needs."""
        return ProcessCounts(workers=1 if self.in_process else num_workers)

    def num_servers(self, num_workers: int) -> int:
        """Count the servers that parameters are cut over, those inside workers included."""
        return 0

    def label(self) -> str:
        """Name it with the settings that tell it from others: `parameter_server async, bf16`."""
        return self.name.rpartition(":")[2]

    def phase_label(self) -> str:
        """Name it in a few letters, as one of several phases."""
        return self.name.rpartition(":")[2]

    def equals_but_for_placement(self, other: StrategySpec) -> bool:
        """Return whether both compute the same, but for placement and assignment of work."""
        return self == other

    def check(self, job: JobSpec) -> None:
        """Refuse what does not go with the rest of the job; called by the job's validator.

        Raises:
            PydanticCustomError: A `fault` with the place, seen from the job.
        """

    def refuse_shards(self, job: JobSpec, how: str) -> None:
        """Refuse a `data.shard` by file or for everybody; `how` says how samples are given out."""
        if job.data.shard in ("file", "off"):
            raise fault(
                f"{self.name} {how} '{job.data.shard}'", "; set 'shard: auto'", at=("data", "shard")
            )

    def check_distribution(self, job: JobSpec) -> None:
        """Refuse a `data.distribution` that does not go with it; only asked if there is one."""
