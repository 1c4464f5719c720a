"""Write checkpoints in the background: a file may take longer than any exchange is allowed to.

Checkpoints of a synchronous run are written to a local store from the live state, while all workers
wait together (`chief_io`), which costs no memory. For a remote store the state is copied, and
training goes on while it is sent. The state at a switch is written from copies in both, whose
memory was reserved beforehand: fresh pages would cost more time at the switch than the copy itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import torch

from phalanx.records import events
from phalanx.records.log import EventLog
from phalanx.records.position import Position
from phalanx.worker.checkpoint.checkpoints import Checkpoints, name_at, pinned
from phalanx.worker.checkpoint.state import OPTIMIZER, REPLICA


class BackgroundTask:
    """Run one task at a time in a thread, which exists only while there is something to do.

    An error in a task is raised by every later `start` and `wait`.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Wait for the task before, then start this one.

        Raises:
            Exception: The error of an earlier task.
        """
        self.wait()
        self._thread = threading.Thread(target=lambda: self._run(task), name=self._name)
        self._thread.start()

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until no task runs, at most for the limit; return whether that is so.

        Without a limit it waits as long as the task's own deadlines let the task run.

        Raises:
            Exception: The error of a task.
        """
        if self._thread is not None:
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        if self._error is not None:
            raise self._error
        return True

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # the thread's boundary: raised in the thread that waits
            self._error = error


@dataclass(frozen=True)
class _Staged:
    position: Position
    tensors: dict[str, torch.Tensor]


class AsyncCheckpointer:
    """Write the checkpoints of one process, one after the other, and record them.

    One at a time, because an older checkpoint that is written last would push newer ones out.
    There is one per process, for all phases of its run; only the chief's writes anything.

    Args:
        checkpoints: Where they go.
        log: Where they are recorded.
    """

    def __init__(self, checkpoints: Checkpoints[torch.Tensor], log: EventLog) -> None:
        self.checkpoints = checkpoints
        self._log = log
        self._background = BackgroundTask("checkpoints")
        self._staged: _Staged | None = None
        # Reused by later copies of the same tensors.
        self._memory: dict[str, torch.Tensor] = {}

    def save(
        self, position: Position, tensors: Mapping[str, torch.Tensor], *, best: bool, begun: float
    ) -> None:
        """Start to write a live state; it may change once `wait_until_free` returns True.

        Args:
            position: Where the run stands.
            tensors: The state.
            best: It is the best so far.
            begun: When the work on it began, by `time.perf_counter`.

        Raises:
            StoreError: The checkpoint before could not be written.
        """
        # The previous checkpoint may still be read from the memory that is about to be overwritten.
        self.wait()
        at = msgspec.structs.replace(position)
        if self.checkpoints.is_remote:
            tensors = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        self._background.start(lambda: self._write(at, tensors, best=best, begun=begun))

    def wait_until_free(self, limit_s: float) -> bool:
        """Wait until the state last saved may change, at most for the limit; return whether it may.

        Raises:
            StoreError: It could not be written.
        """
        return self.checkpoints.is_remote or self.wait(limit_s)

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait for the write under way, at most for the limit; return whether it is done.

        Raises:
            StoreError: A checkpoint could not be written.
        """
        return self._background.wait(limit_s)

    def reserve_memory(self, replica_state: Mapping[str, torch.Tensor]) -> None:
        """Allocate memory for copies of the replica's state, in background."""
        named = {REPLICA + name: tensor for name, tensor in replica_state.items()}
        self._background.start(lambda: self._touch_memory(named))

    def stage(self, position: Position, tensors: Mapping[str, torch.Tensor]) -> str:
        """Remember the live state at a switch; return the name that its file will have.

        `copy_staged` and `write_staged` follow, in this order, before training goes on.
        """
        self.wait()
        self._staged = _Staged(msgspec.structs.replace(position), dict(tensors))
        return pinned(name_at(position))

    def copy_staged(self, *, serving: bool) -> None:
        """Copy what the next phase is going to change; does nothing if no state is staged.

        Args:
            serving: The next phase has servers that own the optimiser, so the optimiser
                state of this process does not change and needs no copy.
        """
        if self._staged is None:
            return
        # Copies reuse memory that a write under way may still read.
        self.wait()
        tensors = self._staged.tensors
        for name, tensor in tensors.items():
            if name.startswith(REPLICA) and not (serving and name.startswith(OPTIMIZER)):
                tensors[name] = self._copy(name, tensor)

    def write_staged(self) -> None:
        """Start to write the staged state, if any; `wait` before its tensors change."""
        staged, self._staged = self._staged, None
        if staged is not None:
            begun = time.perf_counter()
            self._background.start(
                lambda: self._write(staged.position, staged.tensors, pin=True, begun=begun)
            )

    def _write(
        self,
        position: Position,
        tensors: Mapping[str, torch.Tensor],
        *,
        best: bool = False,
        pin: bool = False,
        begun: float,
    ) -> None:
        written = self.checkpoints.write(position, tensors)
        if best:
            self.checkpoints.mark_best(written.name)
        if pin:
            self.checkpoints.pin(written.name)
        self._log.record(
            events.Checkpoint(
                path=written.name,
                epoch=position.epoch,
                samples=position.samples,
                size_bytes=written.size_bytes,
                duration_s=time.perf_counter() - begun,
            )
        )

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        found = self._memory.get(name)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            found = self._memory[name] = torch.empty_like(tensor)
        return found.copy_(tensor)

    def _touch_memory(self, named: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in named.items():
            # Writing zeros makes the system hand out the pages now, not at the switch.
            self._memory[name] = torch.empty_like(tensor).zero_()
