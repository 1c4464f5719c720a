"""The depot: where processes on other machines leave checkpoints and the state of servers.

A thread of the controller's process with a socket of its own, so that neither large files nor a
slow disk hold up the controller. Guarded by the same keys as the control channel: only processes
of the run reach it, and one that was replaced reaches it no longer. What a file is called and how
it takes its place is `shelf`'s business; processes that share the run directory never ask here.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import msgspec
import zmq

from phalanx.control.shelf import Shelf
from phalanx.errors import StoreError
from phalanx.wire.auth import peer_key
from phalanx.wire.control import ControlServer
from phalanx.wire.deadline import Deadline
from phalanx.wire.depot import (
    PART_BYTES,
    WINDOW,
    Answer,
    Carried,
    Close,
    Commit,
    Drop,
    Fetch,
    Find,
    Link,
    Open,
    Opened,
    Part,
    Piece,
    Question,
    Received,
    Refused,
    Store,
)

_SWEEP_S = 1.0
# Longer than any process waits for an answer: nobody comes back to such a transfer.
_FORGOTTEN_S = 600.0


class Depot:
    """Serves the files of one run; use as a context manager.

    Args:
        control: The control channel, whose keys it trusts.
        root: The run directory.
    """

    def __init__(self, control: ControlServer, root: Path) -> None:
        self._control = control
        self._shelf = Shelf(root)
        self._decoder = msgspec.msgpack.Decoder(Question)
        self._thread = threading.Thread(target=self._serve, name="depot")
        self.port = 0
        """Where it listens, on the address of the control channel."""

    def __enter__(self) -> Depot:
        self._socket, self.port = self._control.listen_beside(
            max_message_bytes=2 * PART_BYTES, high_water=4 * WINDOW
        )
        context = self._socket.context
        self._bell: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._ringer: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._bell.bind("inproc://depot")
        self._ringer.connect("inproc://depot")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ringer.send(b"")
        self._thread.join()
        self._shelf.close_unless(lambda owner, idle_s: False)
        for socket in (self._socket, self._bell, self._ringer):
            socket.close(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        sweep = Deadline.after(_SWEEP_S, "a look at what is left lying about")
        while True:
            ready = dict(poller.poll(sweep.remaining_ms))
            if self._bell in ready:
                return
            if self._socket in ready:
                self._answer_one()
            if sweep.expired:
                self._shelf.close_unless(self._goes_on)
                sweep = Deadline.after(_SWEEP_S, sweep.activity)

    def _goes_on(self, owner: str, idle_s: float) -> bool:
        return self._control.name_of(owner) is not None and idle_s < _FORGOTTEN_S

    def _answer_one(self) -> None:
        """Answer one question; strangers, the replaced and nonsense are passed over."""
        route, header, *rest = self._socket.recv_multipart(copy=False)
        owner = peer_key(header)
        if self._control.name_of(owner) is None or len(rest) > 1:
            return
        try:
            question = self._decoder.decode(header.buffer)
        except msgspec.DecodeError:
            return
        payload = rest[0].buffer if rest else memoryview(b"")
        content: bytes | None = None
        answer: Answer
        try:
            answer, content = self._carry_out(owner, question, payload)
        except (StoreError, OSError) as refusal:
            answer = Refused(question.number, str(refusal))
        frames = [route.bytes, msgspec.msgpack.encode(answer)]
        # A peer that is gone, or whose queue is full, asks again.
        self._socket.send_multipart(frames if content is None else [*frames, content])

    def _carry_out(
        self, owner: str, question: Question, payload: memoryview
    ) -> tuple[Answer, bytes | None]:
        shelf, number, transfer = self._shelf, question.number, (owner, question.number)
        match question:
            case Store():
                return Received(number, shelf.begin(transfer, question.name)), None
            case Part():
                return Received(number, shelf.append(transfer, question.offset, payload)), None
            case Commit():
                shelf.commit(transfer, question.size)
            case Open():
                return Opened(number, shelf.open(transfer, question.name)), None
            case Fetch():
                content = shelf.read(transfer, question.offset, question.length)
                return Piece(number, question.offset), content
            case Close():
                shelf.close(transfer)
            case Find():
                return shelf.find(number, question.folder), None
            case Link():
                shelf.link(question.name, question.other)
            case Drop():
                shelf.drop(question.names)
        return Carried(number), None
