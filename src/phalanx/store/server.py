"""Store server: gives processes on other machines access to the files of a run.

A thread of the controller with a separate socket, so that neither large files nor a slow disk delay
the controller; it exists only in runs that have a remote process. It trusts the keys of the control
channel: unknown and replaced processes get no answer. `transfers` carries out requests on files.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import zmq

from phalanx.errors import StoreError
from phalanx.store.messages import (
    CHUNK_BYTES,
    WINDOW,
    BeginUpload,
    ChunkContent,
    CloseTransfer,
    CommitUpload,
    DeleteFiles,
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
from phalanx.store.transfers import FileTransfers
from phalanx.wire.auth import peer_key
from phalanx.wire.control import ControlServer
from phalanx.wire.deadline import Deadline

_SWEEP_S = 1.0
# Longer than any client waits for an answer: no client comes back to such a transfer.
_ABANDONED_S = 600.0
_WAKE = "inproc://store-server"


class StoreServer:
    """Serve the files of one run, from `start` to the end of the `with` block.

    Args:
        control: The control channel, whose keys are trusted.
        root: The run directory.
    """

    def __init__(self, control: ControlServer, root: Path) -> None:
        self._control = control
        self._transfers = FileTransfers(root)
        self._decoder = msgspec.msgpack.Decoder(StoreRequest)
        self._thread: threading.Thread | None = None
        self._port = 0

    def start(self) -> int:
        """Start the thread and open the port unless that is done; return the port.

        The port is on the address of the control channel.
        """
        if self._thread is None:
            self._socket, self._port = self._control.listen_beside(
                max_message_bytes=2 * CHUNK_BYTES, high_water=4 * WINDOW
            )
            context = self._socket.context
            # A message through this pair wakes the thread out of its poll to end it.
            self._wake_in: zmq.Socket[bytes] = context.socket(zmq.PAIR)
            self._wake_out: zmq.Socket[bytes] = context.socket(zmq.PAIR)
            self._wake_in.bind(_WAKE)
            self._wake_out.connect(_WAKE)
            self._thread = threading.Thread(target=self._serve, name="store-server")
            self._thread.start()
        return self._port

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and not been closed."""
        return self._thread is not None

    def close(self) -> None:
        """End the thread and close the port; uploads that are not committed leave nothing."""
        if self._thread is None:
            return
        # The thread uses the sockets: it ends before they are closed.
        self._wake_out.send(b"")
        self._thread.join()
        self._thread = None
        self._transfers.close_unless(lambda owner, idle_s: False)
        for socket in (self._socket, self._wake_in, self._wake_out):
            socket.close(linger=0)

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_in, zmq.POLLIN)
        sweep = Deadline.after(_SWEEP_S, "a sweep of abandoned transfers")
        while True:
            ready = dict(poller.poll(sweep.remaining_ms))
            if self._wake_in in ready:
                return
            if self._socket in ready:
                self._answer_one()
            if sweep.expired:
                self._transfers.close_unless(self._is_live)
                sweep = Deadline.after(_SWEEP_S, sweep.activity)

    def _is_live(self, owner: str, idle_s: float) -> bool:
        return self._control.name_of(owner) is not None and idle_s < _ABANDONED_S

    def _answer_one(self) -> None:
        """Answer one request; unknown or replaced processes and malformed messages are ignored."""
        route, header, *rest = self._socket.recv_multipart(copy=False)
        owner = peer_key(header)
        # Asked for every message: a process may have been replaced since its connection was made.
        if self._control.name_of(owner) is None or len(rest) > 1:
            return
        try:
            request = self._decoder.decode(header.buffer)
        # Text that is not UTF-8 has an error of its own.
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        payload = rest[0].buffer if rest else memoryview(b"")
        content: bytes | None = None
        response: StoreResponse
        try:
            response, content = self._carry_out(owner, request, payload)
        except (StoreError, OSError) as error:
            response = RequestFailed(request.number, str(error))
        frames = [route.bytes, msgspec.msgpack.encode(response)]
        # Dropped if the client is gone or its queue is full: it repeats its request.
        self._socket.send_multipart(frames if content is None else [*frames, content])

    def _carry_out(
        self, owner: str, request: StoreRequest, payload: memoryview
    ) -> tuple[StoreResponse, bytes | None]:
        files, number, transfer = self._transfers, request.number, (owner, request.number)
        match request:
            case BeginUpload():
                return UploadProgress(number, files.begin(transfer, request.name)), None
            case UploadChunk():
                end = files.append(transfer, request.offset, payload)
                return UploadProgress(number, end), None
            case CommitUpload():
                files.commit(transfer, request.size)
            case OpenFile():
                return FileOpened(number, files.open(transfer, request.name)), None
            case ReadChunk():
                content = files.read(transfer, request.offset, request.length)
                return ChunkContent(number, request.offset), content
            case CloseTransfer():
                files.close(transfer)
            case ListFiles():
                return files.list_files(number, request.folder), None
            case LinkFile():
                files.link(request.name, request.other)
            case DeleteFiles():
                files.delete(request.names)
        return RequestDone(number), None
