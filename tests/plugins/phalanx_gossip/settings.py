"""Settings of gossip averaging, and the kind that a job file names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from phalanx.spec.base import fault
from phalanx.spec.kinds import StrategyKind
from phalanx.spec.strategy import StrategySpec

if TYPE_CHECKING:
    from phalanx.spec.job import JobSpec


class GossipSpec(StrategySpec):
    """Workers step alone and average their parameters with a random partner (Boyd et al. 2006)."""

    name: str = "gossip"
    every: Annotated[int, Field(gt=0)] = 1
    """Steps between two averagings."""
    seed: int = 0
    """Decides the pairs, together with the number of the step."""
    applies_before_exchange: ClassVar[bool] = True

    @property
    @override
    def exchange_every(self) -> int:
        return self.every

    @override
    def label(self) -> str:
        return f"gossip every {self.every}"

    @override
    def check(self, job: JobSpec) -> None:
        if job.workers % 2:
            raise fault(
                f"gossip pairs workers up, but {job.workers} are not even",
                "; set 'workers' to an even number",
                at=("workers",),
            )


GOSSIP = StrategyKind(
    name="gossip",
    spec=GossipSpec,
    step="phalanx_gossip.step:Gossip",
    predictor="phalanx_gossip.predict:predict_gossip",
)
UNPLANNED = StrategyKind(name="unplanned", spec=GossipSpec, step="phalanx_gossip.step:Gossip")
