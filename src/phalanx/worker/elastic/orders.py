"""Take the controller's orders to a member of an elastic group, in a thread of its own.

The training thread may wait in an exchange for somebody who is gone: the order to break it off must
reach the group from another thread.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType

from phalanx.comm.mesh import MeshCollective
from phalanx.errors import PeerError
from phalanx.wire.deadline import Deadline
from phalanx.wire.elastic import FormGroup, HaltGroup, LeaveGroup, TurnGroup
from phalanx.wire.messages import FromCoordinator

_POLL_S = 0.5


class GroupOrders:
    """Orders to one member; use as a context manager.

    Args:
        inbox: Messages of the coordinator.
    """

    def __init__(self, inbox: queue.SimpleQueue[FromCoordinator]) -> None:
        self._inbox = inbox
        self._next: queue.SimpleQueue[FormGroup | LeaveGroup] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._halted = 0
        self._turning = 0
        self._generation = 0
        self._group: MeshCollective | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="group orders", daemon=True)

    def __enter__(self) -> GroupOrders:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()

    def next(self, deadline: Deadline) -> FormGroup | LeaveGroup:
        """Wait for the next group, or for the order to leave.

        Raises:
            TimeoutExpired: Neither came in time.
        """
        try:
            return self._next.get(timeout=deadline.remaining_s)
        except queue.Empty:
            raise deadline.error() from None

    def check(self, generation: int) -> None:
        """Raise `PeerError` if the group of this generation is to be given up."""
        if self._halted >= generation:
            raise PeerError("the controller has given this group up", suspects=())

    def is_turning(self, generation: int) -> bool:
        """Return whether the group of this generation is to end after a step."""
        return self._turning >= generation

    def watch(self, generation: int, group: MeshCollective | None) -> None:
        """Break this group off when it is told to; None: a group of one, which waits for nobody."""
        with self._lock:
            self._generation, self._group = generation, group
            self._break_off()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                order = self._inbox.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            self._take(order)

    def _take(self, order: FromCoordinator) -> None:
        match order:
            case HaltGroup(generation):
                with self._lock:
                    self._halted = max(self._halted, generation)
                    self._break_off()
            case TurnGroup(generation):
                self._turning = max(self._turning, generation)
            case FormGroup() | LeaveGroup():
                self._next.put(order)
            case _:
                pass  # of no concern to a member of a group

    def _break_off(self) -> None:
        if self._group is not None and self._halted >= self._generation:
            self._group.abort("the controller has given this group up")
            self._group = None
