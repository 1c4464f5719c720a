"""See the state of a script's optimiser as flat tensors, where it has the shapes of parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from phalanx.program.gradients import ScriptGradients


class ScriptOptimizer:
    """The moments of a live torch optimiser, moved into flat buffers as views.

    Args:
        optimizer: The script's.
        flat: The places of its parameters.
    """

    def __init__(self, optimizer: Optimizer, flat: ScriptGradients) -> None:
        self._optimizer = optimizer
        self._flat = flat
        self._buffers: dict[str, Tensor] = {}

    def state(self) -> dict[str, Tensor]:
        """Return every kind of state that has the shape of its parameter, for all parameters.

        Nothing before the first step: that is when optimisers make their state. Writing to a tensor
        changes the optimiser.
        """
        places = dict(zip(self._flat.trained_ids, self._flat.layout.slots, strict=True))
        for parameter, state in self._optimizer.state.items():
            slot = places.get(id(parameter))
            if slot is None:
                continue
            for key, value in state.items():
                if not isinstance(value, Tensor) or value.shape != parameter.shape:
                    continue
                if value.ndim == 0 or value.dtype != torch.float32:
                    continue
                flat = self._buffers.setdefault(key, torch.zeros_like(self._flat.parameters))
                home = slot.view(flat)
                if value.data_ptr() != home.data_ptr():
                    home.copy_(value)
                    state[key] = home
        return dict(self._buffers)
