"""Interface of what a strategy trains: the engine's `Replica`, or the model of a user's script."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from phalanx.data.stream import Batch
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.result import EvaluationSums, StepResult


class OptimizerState(Protocol):
    """The state of an update rule, by name."""

    def state(self) -> dict[str, Tensor]:
        """Return live tensors: flat ones as long as the parameters, and counters."""


class FlatReplica(Protocol):
    """One worker's copy of a model, with its parameters and gradients in flat buffers."""

    @property
    def layout(self) -> FlatLayout:
        """Which parameter lies where in `parameters` and `gradients`."""

    @property
    def buckets(self) -> tuple[Range, ...]:
        """The ranges of `gradients` that `forward_backward` reports one by one."""

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters; writing to it changes the model."""

    @property
    def gradients(self) -> Tensor:
        """What the last `forward_backward` found; exchange works in place."""

    @property
    def buffers(self) -> Tensor:
        """All running statistics; writing to it changes the model."""

    @property
    def optimizer(self) -> OptimizerState | None:
        """The update rule; None if another process owns the parameters."""

    @property
    def gradient_weight(self) -> float:
        """What the last gradient was weighed by, of `Batch.global_count`."""

    @property
    def update_options(self) -> bytes:
        """What servers have to know for the update by the last gradient; empty: nothing."""

    def forward_backward(
        self, batch: Batch, on_bucket_ready: OnBucketReady | None = None, *, step: int
    ) -> StepResult:
        """Compute loss and gradients of this worker's share of a batch, as `Replica` does.

        No bucket is reported where a script makes no step of a batch.
        """

    def pass_over(self, batch: Batch, *, step: int) -> None:
        """Note a batch of which this worker has no sample."""

    def counts(self, batch: Batch) -> bool:
        """Return whether the loss may weigh samples differently, so that weights are exchanged."""

    def apply(self, lr: float) -> None:
        """Update the parameters by `gradients`."""


class WholeReplica(FlatReplica, Protocol):
    """A replica that servers and switches of strategy take over, state and all."""

    @property
    def module(self) -> nn.Module:
        """The network."""

    @property
    def optimizer(self) -> FlatOptimizer | None:
        """The update rule; None if another process owns the parameters."""

    def evaluate(self, batch: Batch) -> EvaluationSums:
        """Evaluate one batch without learning."""

    def regularisation(self) -> float:
        """Return the present value of the L2 regulariser; 0 if there is none."""

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs, live."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
