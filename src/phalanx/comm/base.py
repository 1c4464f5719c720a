"""What every group of workers can do together; `comm` adapts torch.distributed to it.

All workers must make the same calls in the same order. Every call carries the deadline that the
collective was made with, and raises `PeerError` when a peer is gone or the deadline passes.
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
        """Whether `wait` would return at once."""


class Collective(ABC):
    """A fixed group of workers that exchange tensors in place.

    Attributes:
        rank: This worker's index in the group.
        size: How many workers the group has.
        sent_bytes: What this worker has sent so far, by the algorithm's own formula.
    """

    rank: int
    size: int
    sent_bytes: int

    @abstractmethod
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> Pending:
        """Begin to combine a tensor over all workers, in place; hands off until it is done."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Give every worker the tensor of one of them, in place."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, by rank; all must have the same shape."""

    @abstractmethod
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int) -> Pending:
        """Begin to send a tensor to one worker; hands off until it is done.

        Between two workers, what has the same tag arrives in the order it was sent.
        """

    @abstractmethod
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int) -> Pending:
        """Begin to fill a tensor with what one worker sends under this tag."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; nothing may be called afterwards."""

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> None:
        """Combine a tensor over all workers, in place."""
        self.start_all_reduce(tensor, reduction).wait()
