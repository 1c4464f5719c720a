"""Client of the store server: transfers survive broken connections.

Every operation opens a separate connection, so any thread may use the client. A request without an
answer is repeated over a new connection; a transfer fails only when nothing at all has moved for
the client's time limit.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import zmq

from phalanx.errors import PhalanxError, StoreError, TimeoutExpired
from phalanx.store.messages import (
    CHUNK_BYTES,
    WINDOW,
    BeginUpload,
    ChunkContent,
    CloseTransfer,
    CommitUpload,
    DeleteFiles,
    FileList,
    FileOpened,
    LinkFile,
    ListFiles,
    OpenFile,
    ReadChunk,
    RequestDone,
    RequestFailed,
    StoreRequest,
    StoreResponse,
    UploadChunk,
    UploadProgress,
)
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair, secure_client

# How long a failed transfer waits for the server to delete what had arrived.
_CLOSE_S = 5.0
# After so much silence all unanswered requests are repeated over a new connection. Doubled each
# time, because a chunk may take longer than this on a slow link.
_RETRY_S = 4.0

ResponseT = TypeVar("ResponseT", bound=StoreResponse)


@dataclass(frozen=True, kw_only=True)
class StoreClient:
    """Send requests to the store server.

    Every method raises `StoreError` if the server refuses, and `TimeoutExpired` if nothing moves
    for the time limit.

    Attributes:
        address: Where the server listens.
        server_key: The server's public key.
        keys: This process's own keys.
        limit_s: How long nothing may move before a transfer is given up.
    """

    address: str
    server_key: str
    keys: KeyPair
    limit_s: float

    @contextmanager
    def upload(self, name: str) -> Iterator[Upload]:
        """Send a file; it replaces the old one when the block ends without an error."""
        with _Session(self, f"{name} to reach the store") as session:
            upload = Upload(session)
            # Answered before any chunk: the server refuses chunks of an unknown upload.
            session.request(BeginUpload(session.number, name), UploadProgress)
            yield upload
            upload.finish()

    @contextmanager
    def download(self, name: str) -> Iterator[Download]:
        """Read a file as it is now, even if it is replaced or deleted meanwhile.

        Raises:
            StoreError: There is no such file.
        """
        with _Session(self, f"{name} from the store") as session:
            opened = session.request(OpenFile(session.number, name), FileOpened)
            yield Download(session, opened.size)

    def list_files(self, folder: str) -> FileList:
        """List the files of a folder, complete and incoming."""
        with _Session(self, f"the store to list {folder}") as session:
            return session.request(ListFiles(session.number, folder), FileList)

    def link(self, name: str, other: str) -> None:
        """Keep a file under a second name."""
        with _Session(self, f"the store to link {name}") as session:
            session.request(LinkFile(session.number, name, other), RequestDone)

    def delete(self, names: tuple[str, ...]) -> None:
        """Delete files; names that do not exist are skipped."""
        with _Session(self, "the store to delete files") as session:
            session.request(DeleteFiles(session.number, names), RequestDone)


class Upload:
    """An upload in progress; written to like any binary file."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._unanswered: deque[tuple[int, memoryview]] = deque()
        self._end = 0

    def write(self, content: bytes | memoryview) -> int:
        """Send bytes; they must not change before the upload is finished."""
        view = memoryview(content).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            while len(self._unanswered) >= WINDOW:
                self._receive()
            self._session.send(UploadChunk(self._session.number, self._end), chunk)
            self._unanswered.append((self._end, chunk))
            self._end += len(chunk)
        return len(view)

    def finish(self) -> int:
        """Wait until the file has replaced the old one; return its size."""
        # The commit would fail if it overtook a chunk that has to be repeated.
        while self._unanswered:
            self._receive()
        self._session.request(CommitUpload(self._session.number, self._end), RequestDone)
        return self._end

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self._end

    def _receive(self) -> None:
        received = self._session.receive()
        if received is None:
            # The old connection may have lost them; the server ignores what it has already.
            for offset, chunk in self._unanswered:
                self._session.send(UploadChunk(self._session.number, offset), chunk)
        elif isinstance(received[0], UploadProgress):
            # The server counts bytes without a gap: one answer confirms all chunks before it.
            while self._unanswered and self._unanswered[0][0] < received[0].end:
                self._unanswered.popleft()


class Download:
    """A file that the server holds open."""

    def __init__(self, session: _Session, size: int) -> None:
        self._session = session
        self.size = size

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill memory with the bytes of the file from `offset` on."""
        if offset + len(target) > self.size:
            raise StoreError(f"the file ends after {self.size} bytes, before what is to be read")
        starts = deque(range(offset, offset + len(target), CHUNK_BYTES))
        awaited: dict[int, memoryview] = {}
        while starts or awaited:
            while starts and len(awaited) < WINDOW:
                start = starts.popleft()
                awaited[start] = target[start - offset : start - offset + CHUNK_BYTES]
                self._request_chunk(start, awaited[start])
            received = self._session.receive()
            if received is None:
                for start, chunk in awaited.items():
                    self._request_chunk(start, chunk)
                continue
            response, payload = received
            # A chunk that was asked for twice may arrive twice; the second is ignored.
            if isinstance(response, ChunkContent) and response.offset in awaited:
                chunk = awaited.pop(response.offset)
                if payload is None or len(payload) != len(chunk):
                    raise StoreError("the store sent less of a file than it has")
                chunk[:] = payload

    def _request_chunk(self, start: int, chunk: memoryview) -> None:
        self._session.send(ReadChunk(self._session.number, start, len(chunk)))


class _Session:
    """The connection of one operation; use as a context manager, from one thread."""

    def __init__(self, client: StoreClient, activity: str) -> None:
        self._client = client
        self._activity = activity
        self._decoder = msgspec.msgpack.Decoder(StoreResponse)
        self._retry_s = _RETRY_S
        self.number = secrets.randbits(63)

    def __enter__(self) -> _Session:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._deadline = Deadline.after(self._client.limit_s, self._activity)
        self._connect()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, TimeoutExpired):
            # The server cannot be reached; it deletes abandoned transfers in any case.
            self._socket.close(linger=0)
        elif error is not None:
            # Awaited, so that the caller finds no half-written file afterwards.
            self._deadline = Deadline.after(_CLOSE_S, "the store to forget a transfer")
            with suppress(PhalanxError):
                self.request(CloseTransfer(self.number), RequestDone)
            self._socket.close(linger=0)
        else:
            # Not awaited: if it is lost, the server drops the idle transfer in a sweep.
            self.send(CloseTransfer(self.number))
            self._socket.close(linger=200)
        self._context.term()

    def request(self, request: StoreRequest, kind: type[ResponseT]) -> ResponseT:
        """Repeat a request until it is answered by a response of this kind.

        Raises:
            StoreError: The server refuses.
            TimeoutExpired: It has not answered for the client's time limit.
        """
        self.send(request)
        while True:
            received = self.receive()
            if received is None:
                self.send(request)
            elif isinstance(received[0], kind):
                return received[0]

    def send(self, request: StoreRequest, payload: memoryview | None = None) -> None:
        """Hand a message to ZeroMQ without copying the payload.

        It is lost if the connection was refused; then no answer comes, and it is repeated.
        """
        header = msgspec.msgpack.encode(request)
        with suppress(zmq.Again):
            if payload is None:
                self._socket.send(header, zmq.NOBLOCK)
            else:
                self._socket.send(header, zmq.NOBLOCK | zmq.SNDMORE)
                self._socket.send(payload, copy=False)

    def receive(self) -> tuple[StoreResponse, memoryview | None] | None:
        """Wait for the next response and its payload; None: repeat all unanswered requests."""
        retry = Deadline.after(self._retry_s, self._activity)
        while self._socket.poll(min(retry.remaining_ms, self._deadline.remaining_ms)):
            frames = self._socket.recv_multipart(copy=False)
            response = self._decoder.decode(frames[0].buffer)
            if response.number != self.number:
                continue
            if isinstance(response, RequestFailed):
                raise StoreError(response.reason)
            # Any answer restarts the time limit: only silence ends a transfer.
            self._deadline = Deadline.after(self._client.limit_s, self._activity)
            return response, frames[1].buffer if len(frames) > 1 else None
        self._deadline.check()
        # A connection that a network has dropped looks alive: only a new one is sure to work.
        self._retry_s *= 2
        self._socket.close(linger=0)
        self._connect()
        return None

    def _connect(self) -> None:
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, 2 * CHUNK_BYTES)
        secure_client(self._socket, self._client.keys, self._client.server_key)
        self._socket.connect(self._client.address)
