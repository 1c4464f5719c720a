"""Writing the state at a switch down while the run goes on.

The next phase changes what is being written, so it is copied first, into memory that is made ready
beforehand: fresh pages would cost more time at the switch than the copy itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch

from phalanx.engine.replica import Replica
from phalanx.records.log import EventLog
from phalanx.records.position import Position
from phalanx.worker.checkpoint import Checkpoints, name_at, pinned
from phalanx.worker.scribe import Scribe, copy_into

_REPLICA, _OPTIMIZER = "replica.", "replica.optimizer/"


@dataclass(frozen=True)
class _Unsaved:
    position: Position
    tensors: dict[str, torch.Tensor]


def rescue_memory(
    checkpoints: Checkpoints, name: str, replica: Replica, *, position: bytes
) -> None:
    """Write the optimiser's state at the last switch down at once, if nobody has so far.

    Every worker has it while servers are at work. The parameters have moved on since: a file
    without them serves those who get theirs from others, and nobody can go back to it.
    """
    if checkpoints.has(name):
        return
    tensors = {
        _REPLICA + key: tensor for key, tensor in replica.state().items() if key != "parameters"
    }
    checkpoints.keep_part(name, position, tensors)


class Keeper:
    """Keeps the states at which a run changes its strategy; one per worker, used by the chief.

    Args:
        checkpoints: Where they go.
        log: Notes them.
    """

    def __init__(self, checkpoints: Checkpoints, log: EventLog) -> None:
        self._background = checkpoints.background
        self._scribe = Scribe(checkpoints, log)
        self._unsaved: _Unsaved | None = None
        self._room: dict[str, torch.Tensor] = {}

    def prepare(self, replica_state: Mapping[str, torch.Tensor]) -> None:
        """Make memory ready for a copy of the replica's state, in the background."""
        named = {_REPLICA + name: tensor for name, tensor in replica_state.items()}
        self._background.start(lambda: self._make_room(named))

    def take(self, position: Position, tensors: Mapping[str, torch.Tensor]) -> str:
        """Note a state, still live; returns the name of the file that it will be."""
        self.wait()
        self._unsaved = _Unsaved(msgspec.structs.replace(position), dict(tensors))
        return pinned(name_at(position))

    def copy(self, *, serving: bool) -> None:
        """Copy what the next phase is going to change.

        Args:
            serving: It has servers, which have optimisers of their own: the replica's rests.
        """
        if self._unsaved is None:
            return
        self.wait()
        tensors = self._unsaved.tensors
        for name, tensor in tensors.items():
            if name.startswith(_REPLICA) and not (serving and name.startswith(_OPTIMIZER)):
                tensors[name] = copy_into(self._room, name, tensor)

    def write(self) -> None:
        """Begin to write what was taken; `wait` for it before its tensors change."""
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            begun = time.perf_counter()
            self._background.start(
                lambda: self._scribe.write(unsaved.position, unsaved.tensors, pin=True, begun=begun)
            )

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            StoreError: It could not be written.
        """
        self._background.wait()

    def _make_room(self, named: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in named.items():
            # Zeros on purpose: writing them is what makes the pages ready.
            self._room[name] = torch.empty_like(tensor).zero_()
