"""Messages between a remote process and the store server.

A file travels in chunks of bounded size. Every message carries the number of its transfer and may
be sent again, over a new connection if need be: a client repeats a request until it is answered,
and the server carries out no request twice that must not be. Payloads are separate frames.
"""

from __future__ import annotations

import msgspec

CHUNK_BYTES = 1 << 19
"""Longest payload of a message."""
WINDOW = 16
"""Chunks in flight; with half a megabyte each enough for 1 Gbit/s over a round trip of 60 ms."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    number: int
    """Of the transfer or the request: random, chosen by the client."""


class BeginUpload(_Message, frozen=True):
    """Accept a file of this name, in `UploadChunk`s; answered by `UploadProgress`."""

    name: str


class UploadChunk(_Message, frozen=True):
    """With a payload: the bytes of the file from `offset` on; answered by `UploadProgress`."""

    offset: int


class CommitUpload(_Message, frozen=True):
    """Replace the old file, durably, now that all bytes were sent; answered by `RequestDone`."""

    size: int


class OpenFile(_Message, frozen=True):
    """Hold a file open as it is now, to read from; answered by `FileOpened`."""

    name: str


class ReadChunk(_Message, frozen=True):
    """Read some bytes of an open file; answered by `ChunkContent`."""

    offset: int
    length: int


class CloseTransfer(_Message, frozen=True):
    """End a transfer, or give it up; answered by `RequestDone`, which need not be awaited."""


class ListFiles(_Message, frozen=True):
    """List the files of a folder; answered by `FileList`."""

    folder: str


class LinkFile(_Message, frozen=True):
    """Keep a file under a second name; answered by `RequestDone`."""

    name: str
    other: str


class DeleteFiles(_Message, frozen=True):
    """Delete files; names that do not exist are skipped. Answered by `RequestDone`."""

    names: tuple[str, ...]


class UploadProgress(_Message, frozen=True):
    """The file's bytes up to `end` have arrived without a gap."""

    end: int


class FileOpened(_Message, frozen=True):
    """The file is held open."""

    size: int


class ChunkContent(_Message, frozen=True):
    """With a payload: the bytes that were read."""

    offset: int


class FileList(_Message, frozen=True):
    """Names of complete files, and of those that are being uploaded."""

    names: tuple[str, ...]
    incoming: tuple[str, ...]


class RequestDone(_Message, frozen=True):
    """The request was carried out."""


class StillWorking(_Message, frozen=True):
    """The disk is busy with the request; sent again and again until the answer proper."""


class RequestFailed(_Message, frozen=True):
    """The request cannot be carried out; the reason is for people."""

    reason: str


StoreRequest = (
    BeginUpload
    | UploadChunk
    | CommitUpload
    | OpenFile
    | ReadChunk
    | CloseTransfer
    | ListFiles
    | LinkFile
    | DeleteFiles
)
StoreResponse = (
    UploadProgress
    | FileOpened
    | ChunkContent
    | FileList
    | RequestDone
    | StillWorking
    | RequestFailed
)
