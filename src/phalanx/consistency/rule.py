"""Express the six consistencies as points in one space of parameters.

`policy` knows only the space, not the names. A simulator that wants a protocol without a name
(softsync, say) makes the `ConsistencyRule` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.spec.parameter_server import ParameterServerSpec


@dataclass(frozen=True, kw_only=True)
class ConsistencyRule:
    """Conditions for a gradient to count, an update to be made, and a worker to read on.

    Attributes:
        gather: Gradients that make one update; None: one from every worker.
        spare: With `gather` None: workers that an update need not wait for.
        fresh: Drop gradients that were computed on a version older than the newest.
        barrier: A worker waits for the update that its gradient went into.
        lead: Steps that a worker may be ahead of the slowest; None: any number.
        lead_max: The bound up to which `lead` may be stretched while that saves waiting; None:
            never.
    """

    gather: int | None = 1
    spare: int = 0
    fresh: bool = False
    barrier: bool = False
    lead: int | None = None
    lead_max: int | None = None

    def gradients_per_update(self, num_workers: int) -> int:
        """Return how many workers' gradients one update holds, at that many workers."""
        if self.gather is None:
            return max(1, num_workers - self.spare)
        return min(self.gather, num_workers) if self.barrier else self.gather

    def in_rounds(self, num_workers: int) -> bool:
        """Return whether every update takes a gradient of every worker."""
        if self.gather is None:
            return self.barrier and self.spare == 0
        return self.barrier and self.gather >= num_workers > 1

    def holds_back(self, num_workers: int) -> bool:
        """Return whether others would wait for a worker that has nothing to push."""
        waits = self.barrier or self.lead is not None
        return waits and not self.in_rounds(num_workers)


def rule_for(spec: ParameterServerSpec) -> ConsistencyRule:
    """Return the rule of a job's consistency setting."""
    match spec.consistency:
        case "async":
            return ConsistencyRule()
        case "ssp" if spec.staleness > 0:
            return ConsistencyRule(lead=spec.staleness)
        case "bsp" | "ssp":
            # Applying one by one would give other numbers than one update from the sum, so a bound
            # of 0 gathers, as its inventors define it. Without spare workers a gradient is stale
            # only if a restored server has it already; then it must not count again.
            return ConsistencyRule(gather=None, spare=spec.backup, fresh=True, barrier=True)
        case "dssp":
            least, most = spec.staleness_range
            return ConsistencyRule(lead=least, lead_max=most)
        case "k_sync":
            return ConsistencyRule(gather=spec.k, fresh=True, barrier=True)
        case "k_async":
            return ConsistencyRule(gather=spec.k)
