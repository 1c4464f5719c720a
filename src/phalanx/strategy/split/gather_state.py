"""Gather the state of a split network at the chief, in the form of any checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.stage import Contents, StageUnit, put_unit
from phalanx.engine.state_layout import StateLayout
from phalanx.errors import EngineError
from phalanx.spec.optimize import OptimizerSpec

# Above every tag that activations and gradients use.
_FIRST_TAG = 1 << 24


class StateGatherer:
    """Gather the units of all workers at the chief, each from one of its holders."""

    def __init__(
        self,
        outline: StateLayout,
        contents: Sequence[Contents],
        *,
        holders: Sequence[int],
        optimizer: OptimizerSpec,
    ) -> None:
        self._outline = outline
        self._contents = contents
        self._holders = holders
        # The rule's state for no weights at all shows its state for any.
        empty = FlatOptimizer(optimizer, torch.zeros(0)).state()
        self._flat_keys = ["parameters"]
        self._flat_keys += [f"optimizer/{key}" for key, value in empty.items() if value.ndim]
        self._counters = [f"optimizer/{key}" for key, value in empty.items() if not value.ndim]

    def template(self) -> dict[str, Tensor]:
        """Return the whole state with the right shapes, on no device."""
        outline = self._outline
        found = {key: torch.empty(outline.size, device="meta") for key in self._flat_keys}
        found["buffers"] = torch.empty(outline.buffer_size, device="meta")
        found |= {key: torch.empty((), device="meta") for key in self._counters}
        return found | dict(outline.others)

    def gather(self, units: Sequence[StageUnit], collective: Collective) -> dict[str, Tensor]:
        """Return the whole state at the chief; all workers call it together."""
        own = {unit.contents.parts: unit for unit in units}
        chief = collective.rank == 0
        whole = (
            {
                key: torch.zeros(value.shape, dtype=value.dtype)
                for key, value in self.template().items()
            }
            if chief
            else {}
        )
        tag = _FIRST_TAG
        for contents, holder in zip(self._contents, self._holders, strict=True):
            given = self._given(own.get(contents.parts))
            expected = self._expected(contents)
            if holder == 0 and chief:
                put_unit(given, whole, self._outline, contents)
            elif chief:
                for number, (key, value) in enumerate(expected.items()):
                    given[key] = torch.empty(value.shape, dtype=value.dtype)
                    collective.start_receive(given[key], source=holder, tag=tag + number).wait()
                put_unit(given, whole, self._outline, contents)
            elif holder == collective.rank:
                for number, key in enumerate(expected):
                    packed = given[key].contiguous()
                    collective.start_send(packed, target=0, tag=tag + number).wait()
            tag += len(expected)
        # A send is done when the bytes have left, not when they have arrived: a worker that closed
        # its connections now would leave the chief waiting for them.
        collective.all_reduce(torch.zeros(1))
        return whole

    def _given(self, unit: StageUnit | None) -> dict[str, Tensor]:
        return {} if unit is None else unit.flats() | unit.others

    def _expected(self, contents: Contents) -> dict[str, Tensor]:
        """Return keys and shapes of a unit's share; empty entries are not sent."""
        outline = self._outline
        size = sum(len(outline.parameters[name]) for name in contents.parameters)
        found: dict[str, Tensor] = {}
        if size:
            found = {key: torch.empty(size, device="meta") for key in self._flat_keys}
            found |= {key: torch.empty((), device="meta") for key in self._counters}
        statistics = sum(len(outline.buffers[name]) for name in contents.buffers)
        if statistics:
            found["buffers"] = torch.empty(statistics, device="meta")
        found |= {key: outline.others[key] for key in contents.others}
        return {key: value for key, value in found.items() if value.numel() > 0}


def check_fit(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Refuse a state that is not of this network and update rule.

    Raises:
        EngineError: It is not.
    """
    for key in sorted(own.keys() | state.keys()):
        here = tuple(own[key].shape) if key in own else "nothing"
        saved = tuple(state[key].shape) if key in state else "nothing"
        if here != saved:
            raise EngineError(
                f"the saved state has {saved} for '{key}' where this model and optimiser have "
                f"{here}; resume with the model and optimizer of the saved run"
            )
