"""From a strategy's spec to the strategy."""

from __future__ import annotations

from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, LockstepSpec, SingleSpec
from phalanx.strategy.allreduce import Allreduce
from phalanx.strategy.base import Strategy
from phalanx.strategy.local_sgd import LocalSgd
from phalanx.strategy.single import Single


def build_strategy(spec: LockstepSpec) -> Strategy:
    """The strategy that a spec describes, not yet attached to anything."""
    match spec:
        case SingleSpec():
            return Single()
        case AllreduceSpec():
            return Allreduce(spec)
        case LocalSgdSpec():
            return LocalSgd(spec)
