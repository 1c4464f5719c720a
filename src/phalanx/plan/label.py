"""Short names of strategies and placements, as tables and sentences show them. Pure text."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.plan.placement import Candidate
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.split import SplitSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import SwitchSpec

_NAMED_MACHINES = 4


def strategy_label(strategy: StrategySpec) -> str:
    """A strategy with the settings that tell it from others: `parameter_server async, bf16`."""
    if isinstance(strategy, AllreduceSpec):
        return "allreduce" + (", bf16" if strategy.compression == "bf16" else "")
    if isinstance(strategy, LocalSgdSpec):
        return f"local_sgd every {strategy.every}"
    if isinstance(strategy, SwitchSpec):
        phases = " to ".join(_phase(phase.strategy) for phase in strategy.resolved)
        return f"switch {phases}"
    if isinstance(strategy, SplitSpec):
        pieces = f", {strategy.micro_batches} micro-batches" if strategy.micro_batches > 1 else ""
        return "split" + pieces + (", bf16" if strategy.wire == "bf16" else "")
    if isinstance(strategy, ParameterServerSpec):
        return f"parameter_server {_consistency(strategy)}"
    return strategy.name


def _phase(strategy: StrategySpec) -> str:
    return _consistency(strategy) if isinstance(strategy, ParameterServerSpec) else strategy.name


def _consistency(spec: ParameterServerSpec) -> str:
    text: str = spec.consistency
    if spec.consistency == "ssp":
        text += f" {spec.staleness}"
    if spec.k is not None:
        text += f" k={spec.k}"
    if spec.backup:
        text += f" backup={spec.backup}"
    return text + (f", {spec.compression}" if spec.compression != "none" else "")


def servers_label(candidate: Candidate) -> str:
    """Where parameters live: `-`, `colocated`, or how many on which machine."""
    strategy = candidate.strategy
    if not isinstance(strategy, ParameterServerSpec | SwitchSpec):
        return "-"
    if isinstance(strategy, SwitchSpec) or strategy.servers == "colocated":
        return "colocated"
    where = [f"{seat.servers} on {seat.machine}" for seat in candidate.seats if seat.servers]
    return ", ".join(where)


def machines_label(names: Sequence[str]) -> str:
    """Machines by name, or how many there are: `ada, bob`, `ada and 11 more`."""
    if len(names) <= _NAMED_MACHINES:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"


def batches_label(sizes: Sequence[int]) -> str:
    """Samples per step of each worker: `128`, `4 x 32`, `80 + 48`, `2 to 40`."""
    if len(sizes) == 1:
        return str(sizes[0])
    if max(sizes) - min(sizes) <= 1:
        return f"{len(sizes)} x {max(sizes)}"
    if len(sizes) <= _NAMED_MACHINES:
        return " + ".join(str(size) for size in sizes)
    return f"{min(sizes)} to {max(sizes)}"
