"""Writing the state at a switch down while the run goes on.

The next phase changes what is being written, so it is copied first, into memory that is made ready
beforehand: fresh pages would cost more time at the switch than the copy itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from phalanx.engine.replica import Replica
from phalanx.errors import StoreError
from phalanx.records import events
from phalanx.records.log import EventLog
from phalanx.records.position import Position
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.tensorfile import write_tensors

_REPLICA, _OPTIMIZER = "replica.", "replica.optimizer/"


@dataclass(frozen=True)
class _Unsaved:
    position: Position
    tensors: dict[str, torch.Tensor]


def rescue_memory(path: Path, replica: Replica, position: bytes) -> None:
    """Write the optimiser's state at the last switch down at once, if nobody has so far.

    Every worker has it while servers are at work. The parameters have moved on since: a file
    without them serves those who get theirs from others, and nobody can go back to it.
    """
    if path.exists():
        return
    tensors = {
        _REPLICA + name: tensor for name, tensor in replica.state().items() if name != "parameters"
    }
    write_tensors(path, tensors, {"position": position.decode()})


class Keeper:
    """Keeps the states at which a run changes its strategy; one per worker, used by the chief.

    Args:
        checkpoints: Where they go.
        log: Notes them.
    """

    def __init__(self, checkpoints: Checkpoints, log: EventLog) -> None:
        self._checkpoints = checkpoints
        self._log = log
        self._unsaved: _Unsaved | None = None
        self._room: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None
        self._refusal: StoreError | None = None

    def prepare(self, replica_state: Mapping[str, torch.Tensor]) -> None:
        """Make memory ready for a copy of the replica's state, in the background."""
        named = {_REPLICA + name: tensor for name, tensor in replica_state.items()}
        self._start(lambda: self._make_room(named))

    def take(self, position: Position, tensors: Mapping[str, torch.Tensor]) -> str:
        """Note a state, still live; returns the name of the file that it will be."""
        self.wait()
        self._unsaved = _Unsaved(msgspec.structs.replace(position), dict(tensors))
        return self._checkpoints.pinned(self._checkpoints.path_at(position)).name

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
                room = self._room.setdefault(name, torch.empty_like(tensor))
                tensors[name] = room.copy_(tensor)

    def write(self) -> None:
        """Begin to write what was taken; `wait` for it before its tensors change."""
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            self._start(lambda: self._write(unsaved))

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            StoreError: It could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._refusal is not None:
            raise self._refusal

    def _start(self, task: Callable[[], None]) -> None:
        self.wait()
        self._thread = threading.Thread(target=task, name="keeper")
        self._thread.start()

    def _write(self, unsaved: _Unsaved) -> None:
        begin, at = time.perf_counter(), unsaved.position
        try:
            path = self._checkpoints.write(at, unsaved.tensors)
            self._checkpoints.pin(path)
        except StoreError as error:
            self._refusal = error
            return
        self._log.record(
            events.Checkpoint(
                path=path.name,
                epoch=at.epoch,
                samples=at.samples,
                size_bytes=path.stat().st_size,
                duration_s=time.perf_counter() - begin,
            )
        )

    def _make_room(self, named: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in named.items():
            # Zeros on purpose: writing them is what makes the pages ready.
            self._room[name] = torch.empty_like(tensor).zero_()
