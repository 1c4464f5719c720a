"""Writing checkpoints for the chief: at once where the depot is near, meanwhile where it is far.

Training would change what is on its way, so a far one is copied first; the copy is as large as
parameters and optimiser state once more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import torch

from phalanx.records import events
from phalanx.records.log import EventLog
from phalanx.records.position import Position
from phalanx.worker.checkpoint import Checkpoints


class Scribe:
    """Writes checkpoints and notes them.

    Args:
        checkpoints: Where they go.
        log: Notes them.
    """

    def __init__(self, checkpoints: Checkpoints, log: EventLog) -> None:
        self._checkpoints = checkpoints
        self._log = log
        self._room: dict[str, torch.Tensor] = {}

    def put(
        self, position: Position, tensors: Mapping[str, torch.Tensor], *, best: bool, begun: float
    ) -> None:
        """See to it that a live state is written; nothing else may be under way.

        Args:
            position: Where the run stands.
            tensors: The state.
            best: It is the best so far.
            begun: When the work on it began, by `time.perf_counter`.
        """
        if not self._checkpoints.is_far:
            self.write(position, tensors, best=best, begun=begun)
            return
        at = msgspec.structs.replace(position)
        copy = {name: copy_into(self._room, name, tensor) for name, tensor in tensors.items()}
        self._checkpoints.background.start(lambda: self.write(at, copy, best=best, begun=begun))

    def write(
        self,
        position: Position,
        tensors: Mapping[str, torch.Tensor],
        *,
        best: bool = False,
        pin: bool = False,
        begun: float,
    ) -> None:
        """Write a state now, and give it the names under which it is kept."""
        written = self._checkpoints.write(position, tensors)
        if best:
            self._checkpoints.mark_best(written.name)
        if pin:
            self._checkpoints.pin(written.name)
        self._log.record(
            events.Checkpoint(
                path=written.name,
                epoch=position.epoch,
                samples=position.samples,
                size_bytes=written.size_bytes,
                duration_s=time.perf_counter() - begun,
            )
        )


def copy_into(room: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, in the room that was made for it before if it fits."""
    found = room.get(name)
    if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
        found = room[name] = torch.empty_like(tensor)
    return found.copy_(tensor)
