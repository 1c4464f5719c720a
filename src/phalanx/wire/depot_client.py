"""A process's way to the depot: connections that come and go, and transfers that survive it.

Every operation has a connection of its own, so that any thread may use the client. What is not
answered is asked again over a new connection; a transfer fails only when nothing at all has moved
for the client's limit.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import msgspec
import zmq

from phalanx.errors import PhalanxError, StoreError, TimeoutExpired
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
    Found,
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
from phalanx.wire.keys import KeyPair, secure_client

# So long a failed transfer waits for the depot to have removed what had arrived.
_CLOSE_S = 5.0
# After so much silence everything unanswered is sent again, over a new connection; twice as long
# each time, because on a slow link a part may take longer than this.
_AGAIN_S = 4.0

Kind = TypeVar("Kind", bound=Answer)


@dataclass(frozen=True, kw_only=True)
class DepotClient:
    """Where the depot is, and who asks.

    Attributes:
        address: Where it listens.
        server_key: The public key by which it is known.
        keys: This process's own.
        limit_s: How long nothing may move before a transfer is given up.
    """

    address: str
    server_key: str
    keys: KeyPair
    limit_s: float

    @contextmanager
    def store(self, name: str) -> Iterator[Upload]:
        """Send a file; it takes its place when the block has ended without an error."""
        with _Session(self, f"{name} to reach the depot") as session:
            upload = Upload(session)
            session.ask(Store(session.number, name), Received)
            yield upload
            upload.finish()

    @contextmanager
    def open(self, name: str) -> Iterator[Download]:
        """Read a file as it is now, whatever becomes of its name meanwhile.

        Raises:
            StoreError: There is no such file.
        """
        with _Session(self, f"{name} from the depot") as session:
            opened = session.ask(Open(session.number, name), Opened)
            yield Download(session, opened.size)

    def find(self, folder: str) -> Found:
        """Which files are in a folder, and which are on their way."""
        with _Session(self, f"what the depot has in {folder}") as session:
            return session.ask(Find(session.number, folder), Found)

    def link(self, name: str, other: str) -> None:
        """Keep a file under another name as well."""
        with _Session(self, f"the depot to keep {name}") as session:
            session.ask(Link(session.number, name, other), Carried)

    def drop(self, names: tuple[str, ...]) -> None:
        """Remove files, those that are there."""
        with _Session(self, "the depot to remove files") as session:
            session.ask(Drop(session.number, names), Carried)


class Upload:
    """A file on its way to the depot; written to like any binary file."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._unanswered: deque[tuple[int, memoryview]] = deque()
        self._end = 0

    def write(self, content: bytes | memoryview) -> int:
        """Send; the content must stay as it is until the upload is finished."""
        view = memoryview(content).cast("B")
        for start in range(0, len(view), PART_BYTES):
            part = view[start : start + PART_BYTES]
            while len(self._unanswered) >= WINDOW:
                self._hear()
            self._session.send(Part(self._session.number, self._end), part)
            self._unanswered.append((self._end, part))
            self._end += len(part)
        return len(view)

    def finish(self) -> int:
        """Wait until the file is in its place; returns its size."""
        while self._unanswered:
            self._hear()
        self._session.ask(Commit(self._session.number, self._end), Carried)
        return self._end

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._end

    def _hear(self) -> None:
        found = self._session.hear()
        if found is None:
            for offset, part in self._unanswered:
                self._session.send(Part(self._session.number, offset), part)
        elif isinstance(found[0], Received):
            while self._unanswered and self._unanswered[0][0] < found[0].end:
                self._unanswered.popleft()


class Download:
    """A file that the depot holds open."""

    def __init__(self, session: _Session, size: int) -> None:
        self._session = session
        self.size = size

    def read(self, offset: int, length: int) -> bytearray:
        """Some bytes of the file."""
        content = bytearray(length)
        self.read_into(memoryview(content), offset)
        return content

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill memory with the bytes of the file from `offset` on."""
        if offset + len(target) > self.size:
            raise StoreError(f"the file ends after {self.size} bytes, before what is to be read")
        starts = deque(range(offset, offset + len(target), PART_BYTES))
        awaited: dict[int, memoryview] = {}
        while starts or awaited:
            while starts and len(awaited) < WINDOW:
                at = starts.popleft()
                awaited[at] = target[at - offset : at - offset + PART_BYTES]
                self._fetch(at, awaited[at])
            found = self._session.hear()
            if found is None:
                for at, part in awaited.items():
                    self._fetch(at, part)
                continue
            answer, payload = found
            if isinstance(answer, Piece) and answer.offset in awaited:
                place = awaited.pop(answer.offset)
                if payload is None or len(payload) != len(place):
                    raise StoreError("the depot sent less of a file than it has")
                place[:] = payload

    def _fetch(self, at: int, part: memoryview) -> None:
        self._session.send(Fetch(self._session.number, at, len(part)))


class _Session:
    """The connection of one operation; use as a context manager, from one thread."""

    def __init__(self, client: DepotClient, activity: str) -> None:
        self._client = client
        self._activity = activity
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self._patience_s = _AGAIN_S
        self.number = secrets.randbits(63)

    def __enter__(self) -> _Session:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._deadline = Deadline.after(self._client.limit_s, self._activity)
        self._connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, TimeoutExpired):
            # Nobody hears; the depot forgets what is left lying about in any case.
            self._socket.close(linger=0)
        elif error is not None:
            self._deadline = Deadline.after(_CLOSE_S, "the depot to forget a transfer")
            with suppress(PhalanxError):
                self.ask(Close(self.number), Carried)
            self._socket.close(linger=0)
        else:
            self.send(Close(self.number))
            self._socket.close(linger=200)
        self._context.term()

    def ask(self, question: Question, kind: type[Kind]) -> Kind:
        """Ask until there is an answer of this kind.

        Raises:
            StoreError: The depot refuses.
            TimeoutExpired: It has not answered for the client's limit.
        """
        self.send(question)
        while True:
            found = self.hear()
            if found is None:
                self.send(question)
            elif isinstance(found[0], kind):
                return found[0]

    def send(self, question: Question, payload: memoryview | None = None) -> None:
        """Hand a message to ZeroMQ; a payload is not copied.

        It is lost if the connection has been refused: nobody answers then, and it is sent again.
        """
        header = msgspec.msgpack.encode(question)
        with suppress(zmq.Again):
            if payload is None:
                self._socket.send(header, zmq.NOBLOCK)
            else:
                self._socket.send(header, zmq.NOBLOCK | zmq.SNDMORE)
                self._socket.send(payload, copy=False)

    def hear(self) -> tuple[Answer, memoryview | None] | None:
        """The next answer, with its payload; None: all that is unanswered must be sent again."""
        again = Deadline.after(self._patience_s, self._activity)
        while self._socket.poll(min(again.remaining_ms, self._deadline.remaining_ms)):
            frames = self._socket.recv_multipart(copy=False)
            answer = self._decoder.decode(frames[0].buffer)
            if answer.number != self.number:
                continue
            if isinstance(answer, Refused):
                raise StoreError(answer.reason)
            self._deadline = Deadline.after(self._client.limit_s, self._activity)
            return answer, frames[1].buffer if len(frames) > 1 else None
        self._deadline.check()
        self._patience_s *= 2
        self._socket.close(linger=0)
        self._connect()
        return None

    def _connect(self) -> None:
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, 2 * PART_BYTES)
        secure_client(self._socket, self._client.keys, self._client.server_key)
        self._socket.connect(self._client.address)
