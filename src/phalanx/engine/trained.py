"""Interface of what a strategy trains: the engine's `Replica`, or the model of a user's script."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from phalanx.data.stream import Batch
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.layout import FlatLayout, Range
from phalanx.engine.result import StepResult


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

    def forward_backward(
        self, batch: Batch, on_bucket_ready: OnBucketReady | None = None, *, step: int
    ) -> StepResult:
        """Compute loss and gradients of this worker's share of a batch, as `Replica` does."""

    def counts(self, batch: Batch) -> bool:
        """Return whether the loss may weigh samples differently, so that weights are exchanged."""

    def apply(self, lr: float) -> None:
        """Update the parameters by `gradients`."""
