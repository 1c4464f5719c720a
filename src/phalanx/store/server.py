"""Store server: gives processes on other machines access to the files of a run.

A thread of the controller with a separate socket, so that neither large files nor a slow disk delay
the controller; it exists only in runs that have a remote process. It trusts the keys of the control
channel: unknown and replaced processes get no answer. `transfers` carries out requests on files;
what waits for the disk runs in `disk_jobs`, and its client hears meanwhile that it goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from phalanx.errors import StoreError
from phalanx.store.disk_jobs import DiskJobs
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
    StillWorking,
    StoreRequest,
    StoreResponse,
    UploadChunk,
    UploadProgress,
)
from phalanx.store.transfers import FileTransfers, TransferId
from phalanx.wire.auth import peer_key
from phalanx.wire.control import ControlServer
from phalanx.wire.deadline import Deadline

_log = logging.getLogger(__name__)

_SWEEP_S = 1.0
# Longer than any client waits for an answer: no client comes back to such a transfer.
_ABANDONED_S = 600.0
# Longer than any disk needs for a file: one that hangs must not keep its clients for ever.
_DISK_S = 1800.0


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
        self._is_closing = threading.Event()
        self._port = 0

    def start(self) -> int:
        """Start the thread and open the port unless that is done; return the port.

        The port is on the address of the control channel.
        """
        if self._thread is None:
            self._socket, self._port = self._control.listen_beside(
                max_message_bytes=2 * CHUNK_BYTES, high_water=4 * WINDOW
            )
            # A byte through this pipe wakes the thread out of its poll: a job is done, or the end.
            self._woken, self._wake = os.pipe()
            self._jobs = DiskJobs(self._wake_up)
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
        # The thread uses socket and pipe, the jobs the pipe: they end before these are closed.
        self._is_closing.set()
        self._wake_up()
        self._thread.join()
        self._thread = None
        self._jobs.close()
        self._take_finished()
        self._transfers.close_unless(lambda owner, idle_s: False)
        self._socket.close(linger=0)
        os.close(self._woken)
        os.close(self._wake)

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake_up(self) -> None:
        os.write(self._wake, b".")

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        sweep = Deadline.after(_SWEEP_S, "a sweep of abandoned transfers")
        while True:
            ready = dict(poller.poll(sweep.remaining_ms))
            if self._is_closing.is_set():
                return
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._take_finished()
            if self._socket in ready:
                self._answer_one()
            if sweep.expired:
                self._transfers.close_unless(self._is_live)
                self._answer_waiting()
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
            response, content = self._carry_out(owner, request, payload, route=route.bytes)
        except (StoreError, OSError) as error:
            response = RequestFailed(request.number, str(error))
        except Exception as error:
            # The boundary between processes: one that asks for nonsense must not end the thread
            # that serves all others.
            _log.exception("a request of %s failed", self._control.name_of(owner))
            response = RequestFailed(request.number, f"{type(error).__name__}: {error}")
        self._send(route.bytes, response, content)

    def _send(self, route: bytes, response: StoreResponse, content: bytes | None = None) -> None:
        frames = [route, msgspec.msgpack.encode(response)]
        # Dropped if the client is gone or its queue is full: it repeats its request.
        self._socket.send_multipart(frames if content is None else [*frames, content])

    def _take_finished(self) -> None:
        """Answer the clients whose jobs are done."""
        for transfer, job in self._jobs.take_finished():
            end = self._transfers.end_commit if job.is_commit else self._transfers.end_link
            end(transfer, job.error)
            self._send(
                job.route,
                RequestDone(transfer[1])
                if job.error is None
                else RequestFailed(transfer[1], str(job.error)),
            )

    def _answer_waiting(self) -> None:
        """Tell clients whose jobs are not done yet, so that they go on waiting."""
        for transfer, job in self._jobs.unfinished():
            if job.age_s < _DISK_S:
                self._send(job.route, StillWorking(transfer[1]))
            else:
                reason = f"the disk has not written a file in {_DISK_S:g} s"
                self._send(job.route, RequestFailed(transfer[1], reason))

    def _do_later(
        self, transfer: TransferId, task: Callable[[], object], *, route: bytes, is_commit: bool
    ) -> StoreResponse:
        self._jobs.start(transfer, task, route=route, is_commit=is_commit)
        return StillWorking(transfer[1])

    def _carry_out(
        self, owner: str, request: StoreRequest, payload: memoryview, *, route: bytes
    ) -> tuple[StoreResponse, bytes | None]:
        files, number, transfer = self._transfers, request.number, (owner, request.number)
        if self._jobs.is_running(transfer):
            # Repeated over another connection, which is where the answer belongs.
            self._jobs.redirect(transfer, route)
            return StillWorking(number), None
        match request:
            case BeginUpload():
                return UploadProgress(number, files.begin(transfer, request.name)), None
            case UploadChunk():
                end = files.append(transfer, request.offset, payload)
                return UploadProgress(number, end), None
            case CommitUpload():
                task = files.begin_commit(transfer, request.size)
                if task is not None:
                    return self._do_later(transfer, task, route=route, is_commit=True), None
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
                task = files.begin_link(transfer, request.name, request.other)
                if task is not None:
                    return self._do_later(transfer, task, route=route, is_commit=False), None
            case DeleteFiles():
                files.delete(transfer, request.names)
        return RequestDone(number), None
