"""From a strategy's spec to the strategy."""

from __future__ import annotations

from phalanx.spec.strategy import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.strategy.allreduce import Allreduce
from phalanx.strategy.base import Strategy
from phalanx.strategy.local_sgd import LocalSgd
from phalanx.strategy.single import Single

LockstepSpec = SingleSpec | AllreduceSpec | LocalSgdSpec
"""Strategies whose workers step together; `parameter_server` has a loop of its own."""


def build_strategy(spec: LockstepSpec) -> Strategy:
    """The strategy that a spec describes, not yet attached to anything."""
    match spec:
        case SingleSpec():
            return Single()
        case AllreduceSpec():
            return Allreduce(spec)
        case LocalSgdSpec():
            return LocalSgd(spec)
