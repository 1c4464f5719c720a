"""Keep an exponential moving average of parameters beside an update rule.

Notation: p parameters after update n, d the decay, a the average: a ← d·a + (1 - d)·p, from a = p
after the first update on. It works entry by entry, so servers average their slices as a worker
would the whole; as state of the optimiser it is saved, restored and handed over with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phalanx.engine.layout import Range
from phalanx.errors import EngineError

if TYPE_CHECKING:
    from phalanx.engine.optimizer import UpdateRule

AVERAGE, AVERAGED_UPDATES = "ema", "ema_updates"
"""Names of the average and of the number of its updates in the state."""
_NAMES = (AVERAGE, AVERAGED_UPDATES)


class AveragingRule:
    """Update by another rule, then the average; the rule's own state is unchanged.

    Args:
        rule: Bound to `parameters`.
        parameters: Flat; read after each update.
        decay: Share of the average that an update keeps.
    """

    def __init__(self, rule: UpdateRule, parameters: Tensor, *, decay: float) -> None:
        self._rule = rule
        self._parameters = parameters
        self._decay = decay
        # Parameters may be filled in later: the average begins with the first update.
        self._average = parameters.clone()
        self._updates = torch.zeros(())

    def update(self, gradient: Tensor, lr: float, /) -> None:
        """Update parameters and average once."""
        self._rule.update(gradient, lr)
        if self._updates == 0:
            self._average.copy_(self._parameters)
        else:
            self._average.lerp_(self._parameters, 1 - self._decay)
        self._updates += 1

    def state(self) -> dict[str, Tensor]:
        """Return the live state of the rule, and the average."""
        return self._rule.state() | {AVERAGE: self._average, AVERAGED_UPDATES: self._updates}

    def part(self, bounds: Range, /) -> dict[str, Tensor]:
        """Return the live state of some entries."""
        own = {AVERAGE: self._average[bounds.start : bounds.stop], AVERAGED_UPDATES: self._updates}
        return self._rule.part(bounds) | own

    def load_state(self, state: Mapping[str, Tensor], /) -> None:
        """Restore a state; raises `EngineError` if it has no average or is another rule's."""
        rest = {key: value for key, value in state.items() if key not in _NAMES}
        if len(rest) + len(_NAMES) != len(state):
            raise EngineError("the saved state has no average of weights; resume without ema")
        self._rule.load_state(rest)
        self._average.copy_(state[AVERAGE])
        self._updates.copy_(state[AVERAGED_UPDATES])


def average_in(state: Mapping[str, Tensor]) -> Tensor | None:
    """Return the average in the state of an optimiser; None: there is none yet."""
    updates = state.get(AVERAGED_UPDATES)
    return state[AVERAGE] if updates is not None and updates > 0 else None
