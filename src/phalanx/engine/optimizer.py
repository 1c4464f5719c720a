"""Update one flat buffer, or any slice of it, by a gradient: regularise, clip, update.

Every rule of the table works entry by entry, so a buffer cut into slices, each with a separate
optimiser, is updated as the whole would be: parameter servers rely on this. It is exact to the bit
if the cuts are at multiples of `SLICE_ALIGNMENT`; elsewhere the last entries of a slice, which do
not fill a vector register, may round differently in the last place. Optimisers of torch.optim and
of users may not be cut everywhere: `OptimizerFactory.cut_at` says where. The rules are in `update`
and `torch_rule`, schedules in `schedule`, exchange in `strategy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from phalanx.engine.averaging import AveragingRule
from phalanx.engine.layout import Range
from phalanx.engine.regulariser import Regulariser
from phalanx.engine.spans import span
from phalanx.engine.update import EntryRule
from phalanx.spec.optimize import OptimizerSpec

SLICE_ALIGNMENT = 16
"""Floats in the widest vector register (AVX-512)."""


class UpdateRule(Protocol):
    """Arithmetic of one optimiser over one slice, with its state."""

    def update(self, gradient: Tensor, lr: float, /) -> None:
        """Update the slice once."""

    def state(self) -> dict[str, Tensor]:
        """Return the live state; the same keys exist before the first step."""

    def part(self, bounds: Range, /) -> dict[str, Tensor]:
        """Return the live state of some entries of the slice."""

    def load_state(self, state: Mapping[str, Tensor], /) -> None:
        """Restore a state; raises `EngineError` if it is another's."""


@runtime_checkable
class GroupedRule(Protocol):
    """An update rule with parameter groups, whose options may change between steps."""

    def set_options(self, groups: Sequence[Mapping[str, object]], /) -> None:
        """Use other options from the next step on, group by group."""


class FlatOptimizer:
    """Update `parameters` by gradients of the same length.

    The regulariser l2 · Σ w² is part of what is minimised: its gradient joins the given one before
    clipping. `weight_decay` is part of the update rule and comes after it.

    Args:
        spec: The rule and its settings.
        parameters: One-dimensional; a view is fine, and is written to.
        kernels: The entries that the regulariser applies to, counted within `parameters`.
        rule: Bound to `parameters`; None makes the one of the table.
    """

    def __init__(
        self,
        spec: OptimizerSpec,
        parameters: Tensor,
        *,
        kernels: Sequence[Range] = (),
        rule: UpdateRule | None = None,
    ) -> None:
        if parameters.ndim != 1 or not parameters.is_contiguous():
            raise ValueError(f"parameters must be one flat tensor, not {tuple(parameters.shape)}")
        self.spec = spec
        self._parameters = parameters.detach()
        self._regulariser = Regulariser(spec.l2, self._parameters, kernels)
        self.rule: UpdateRule = EntryRule(spec, self._parameters) if rule is None else rule
        if spec.ema is not None:
            self.rule = AveragingRule(self.rule, self._parameters, decay=spec.ema)

    def step(self, gradient: Tensor, lr: float, *, gradient_norm: float | None = None) -> None:
        """Make one update. `gradient` is read in place, and changed by regulariser and clipping.

        Args:
            gradient: As long as the parameters; already the mean over the global batch.
            lr: The rate of this step.
            gradient_norm: Length of the whole gradient, regulariser included, for `clip_norm` on a
                slice: the root of the slices' `squared_norm` added up. None measures `gradient`.
        """
        if self.spec.l2 > 0:
            with span("regulariser"):
                self._regulariser.add_to(gradient)
        if self.spec.clip_norm is not None:
            norm = float(gradient.norm()) if gradient_norm is None else gradient_norm
            if norm > self.spec.clip_norm:
                gradient.mul_(self.spec.clip_norm / norm)
        self.rule.update(gradient, lr)

    def set_options(self, groups: Sequence[Mapping[str, object]]) -> None:
        """Use other options of the parameter groups from the next step on; rules of torch only."""
        assert isinstance(self.rule, GroupedRule), "only rules of torch have groups"
        self.rule.set_options(groups)

    def squared_norm(self, gradient: Tensor) -> float:
        """Return the squared norm of `gradient` with the regulariser's part, without writing."""
        return self._regulariser.squared_norm(gradient)

    def regularisation(self) -> float:
        """Return l2 · Σ w² over the kernel entries; slices add up to the whole."""
        return self._regulariser.value()

    def state(self) -> dict[str, Tensor]:
        """Return the rule's live state: flat tensors as long as the parameters, and counters.

        Rules of torch.optim also have state by name, which is neither; see `torch_rule`. The same
        keys exist before the first step. Copy what must outlive the next one.
        """
        return self.rule.state()

    def part(self, bounds: tuple[int, int]) -> dict[str, Tensor]:
        """Return the live state that an optimiser of a slice of `parameters` has too."""
        return self.rule.part(Range(*bounds))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, here or in another process.

        Raises:
            EngineError: The state is of another rule or of another length; nothing was changed.
        """
        self.rule.load_state(state)
