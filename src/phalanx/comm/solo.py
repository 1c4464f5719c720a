"""Collective of one worker: every exchange is already done."""

from __future__ import annotations

import torch
from typing_extensions import override

from phalanx.comm.base import Collective, Pending, Reduction


class _Done:
    def wait(self) -> None:
        """Return at once."""

    def is_done(self) -> bool:
        """Return True."""
        return True


class SoloCollective(Collective):
    """A group of one worker."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.sent_bytes = 0

    @override
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> Pending:
        return _Done()

    @override
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        return

    @override
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.clone()]

    @override
    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @override
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int) -> Pending:
        raise ValueError(f"a group of one has no worker {target} to send to")

    @override
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int) -> Pending:
        raise ValueError(f"a group of one has no worker {source} to receive from")

    @override
    def close(self) -> None:
        return
