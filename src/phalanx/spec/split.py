"""Describe the strategy `split`: one network, its parts on different workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from phalanx.spec.base import ListOf, fault
from phalanx.spec.optimize import OPTIMIZERS
from phalanx.spec.quantity import Bytes
from phalanx.spec.strategy import Effect, EncryptField, Encryption, StrategySpec

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec

Rank = Annotated[int, Field(ge=0)]
NaivePlacement = Literal["round_robin", "by_layers", "by_parameters"]


class SplitSpec(StrategySpec):
    """One network, its parts on different workers; weights and optimiser state never move.

    Activations travel forward and gradients back.
    """

    name: Literal["split"] = "split"
    placement: Literal["planned"] | NaivePlacement | dict[str, Rank] = "planned"
    """planned: measured and searched; round_robin, by_layers, by_parameters: naive ones to compare
    with; or a mapping from part to worker, in which `*` stands for any letters and the first match
    counts."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """Order of micro-batches: gpipe (all forward, then all back) or 1f1b (back as soon as possible,
    which keeps fewer activations)."""
    micro_batches: Annotated[int, Field(gt=0)] = 1
    """Pieces of each batch that follow one another through the workers; pays where parts on
    different workers wait for one another. Batch norm then sees one piece at a time."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """Format in which activations and gradients travel; bf16 halves the traffic and rounds."""
    replicate: dict[str, ListOf[Rank]] = {}
    """Heavy parts that several workers hold, each computing its share of every batch: part to list
    of workers; `*` as in `placement`."""
    memory: ListOf[Bytes] | None = None
    """Memory that each worker may use for its parts; null: what its machine has free."""
    speeds: ListOf[Annotated[float, Field(gt=0)]] | None = None
    """Relative speed of each worker, for planning; null: measured at the start."""
    encrypt: EncryptField = "auto"
    """Encryption of activations and gradients in transit: always, never, or auto: between machines.
    Processes authenticate in any case."""
    splits_model: ClassVar[bool] = True

    @property
    @override
    def encryption(self) -> Encryption:
        return self.encrypt

    def __hash__(self) -> int:
        """Hash the settings: mappings have no hash, and planners keep strategies in sets."""
        return hash(self.model_dump_json())

    @property
    @override
    def effect(self) -> Effect:
        return "exact" if self.wire == "fp32" else "rounded"

    @override
    def label(self) -> str:
        pieces = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        return "split" + pieces + (", bf16" if self.wire == "bf16" else "")

    @override
    def check(self, job: JobSpec) -> None:
        self.check_workers(job.workers)
        if job.batch.shares is not None:
            raise fault(
                "split has no shares of the batch: every worker sees all of it",
                "; leave 'batch.shares' away, or set 'strategy.replicate'",
                at=("batch", "shares"),
            )
        self.refuse_shards(job, "gives every worker all samples, not those of")
        if job.optimizer.kind.update is None:
            raise fault(
                f"split has optimisers of the table only, not '{job.optimizer.name}'",
                f"; set one of {', '.join(OPTIMIZERS.built_in)}",
                at=("optimizer",),
            )
        if job.precision == "auto":
            raise fault(
                "split does not measure precisions",
                "; set 'precision: fp32' or 'bf16'",
                at=("precision",),
            )

    @override
    def check_distribution(self, job: JobSpec) -> None:
        if job.data.distribution is not None and job.data.distribution.name != "by_modality":
            raise fault(
                "strategy split shows every batch to all workers, so no worker owns samples",
                "; leave distribution out, or set by_modality",
                at=("data", "distribution"),
            )

    def check_workers(self, num_workers: int) -> None:
        """Refuse settings that do not fit the number of workers."""
        for key in ("memory", "speeds"):
            given = getattr(self, key)
            if given is not None and len(given) != num_workers:
                raise fault(
                    f"strategy.{key} takes one entry per worker ({num_workers}), not {len(given)}",
                    at=("strategy", key),
                )
        places: list[tuple[str, str, tuple[int, ...]]] = [
            ("placement", part, (rank,)) for part, rank in self._explicit.items()
        ]
        places += [("replicate", part, ranks) for part, ranks in self.replicate.items()]
        for key, part, ranks in places:
            if any(rank >= num_workers for rank in ranks):
                raise fault(
                    f"strategy.{key} puts part '{part}' on worker {max(ranks)}, but the "
                    f"{num_workers} workers have ranks up to {num_workers - 1}",
                    at=("strategy", key),
                )
            if len(set(ranks)) != len(ranks) or not ranks:
                raise fault(
                    f"strategy.replicate takes different workers for part '{part}', not "
                    f"{list(ranks)}",
                    at=("strategy", key),
                )

    @property
    def _explicit(self) -> dict[str, int]:
        return self.placement if isinstance(self.placement, dict) else {}
