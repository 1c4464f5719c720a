"""Define the interface of collectives; `mesh` and `gloo` implement it.

All workers must make the same calls in the same order. Every call has the deadline that the
collective was made with, and raises `PeerError` when a worker is gone or the deadline passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, Protocol

import torch

Reduction = Literal["sum", "min", "max"]


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> None:
        """Block until the tensor holds the result; raises `PeerError` on failure."""

    def is_done(self) -> bool:
        """Return whether `wait` would return at once."""


class Collective(ABC):
    """A fixed group of workers that exchange tensors in place.

    Attributes:
        rank: This worker's index in the group.
        size: Number of workers in the group.
        sent_bytes: Bytes that this worker has sent so far, counted or by the algorithm's formula.
    """

    rank: int
    size: int
    sent_bytes: int

    @abstractmethod
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> Pending:
        """Start to reduce a tensor over all workers, in place; do not touch it until done."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Send one worker's tensor to all, in place."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all workers, by rank; all must have the same shape."""

    @abstractmethod
    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Send each row to the worker of its rank; return the rows received, by rank."""

    @abstractmethod
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int) -> Pending:
        """Start to send a tensor to one worker; do not change it until done.

        Between two workers, messages with the same tag arrive in the order they were sent.
        """

    @abstractmethod
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int) -> Pending:
        """Start to receive a tensor that one worker sends under this tag."""

    def use_topology(self, name: str) -> None:  # noqa: B027 (most have one way of their own)
        """Sum along another topology from now on; all members say so between the same exchanges.

        Groups that are not over links of their own have one way, and leave it at that.

        Raises:
            SpecError: There is no such topology.
        """

    def topologies(self) -> tuple[str, ...]:
        """Return the topologies that differ in this group; empty where it has one way."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Leave the group; nothing may be called afterwards."""

    def count_beside(self, num_bytes: int) -> None:
        """Count bytes that this worker has sent to the group by other connections."""
        self.sent_bytes += num_bytes

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> None:
        """Reduce a tensor over all workers, in place."""
        self.start_all_reduce(tensor, reduction).wait()
