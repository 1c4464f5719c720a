"""Uploads and downloads of a run's files on the controller's machine, without sockets.

An upload grows in a temporary file beside the one that it will replace. A file that is read stays
open, so its reader gets all of it even if it is replaced or deleted meanwhile. Clients repeat
requests without an answer over new connections, and what the old one still carried may arrive much
later: a transfer or request that is settled has no effect a second time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from phalanx.errors import StoreError
from phalanx.store.atomic import Replacement, link_atomically
from phalanx.store.messages import CHUNK_BYTES, FileList

FOLDERS = ("checkpoints", "servers")
# Names come from the network: no other folder, no path upwards, no hidden file.
_NAME = re.compile(rf"({'|'.join(FOLDERS)})/[A-Za-z0-9][A-Za-z0-9_-]*\.safetensors")
# Settled transfers and requests that are remembered: more than all processes of a great run settle
# while a broken connection may still deliver something.
_NUM_REMEMBERED = 4096
_FORGOTTEN = "the store has closed this transfer: it was over, or nothing of it came for long"

TransferId = tuple[str, int]
"""The owner's public key, and the number that it chose."""


@dataclass
class _Uploading:
    name: str
    replacement: Replacement
    end: int = 0
    is_committing: bool = False
    failure: str = ""
    """Why nothing can become of it any more."""
    touched: float = field(default_factory=time.monotonic)


@dataclass
class _Reading:
    file: BinaryIO
    touched: float = field(default_factory=time.monotonic)


class FileTransfers:
    """Keep the open transfers of one run directory; used from one thread.

    Every method raises `StoreError` with a reason for people if it fails.

    Args:
        root: The run directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._uploads: dict[TransferId, _Uploading] = {}
        self._downloads: dict[TransferId, _Reading] = {}
        self._settled: dict[TransferId, bool] = {}
        """Whether each was carried out, or given up; the oldest first."""

    def begin(self, transfer: TransferId, name: str) -> int:
        """Begin an upload; return how much of it has arrived, in case it had begun before."""
        upload = self._uploads.get(transfer)
        if upload is None:
            self._check_new(transfer)
            path = self._path(name)
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as error:
                raise StoreError(f"cannot write {path}: {error.strerror}") from error
            upload = self._uploads[transfer] = _Uploading(name, Replacement(path))
        return upload.end

    def append(self, transfer: TransferId, offset: int, content: memoryview) -> int:
        """Append a chunk if it is the next one; return how much has arrived without a gap."""
        upload = self._uploads.get(transfer)
        if upload is None:
            raise StoreError(_FORGOTTEN)
        upload.touched = time.monotonic()
        if upload.failure:
            raise StoreError(upload.failure)
        # A chunk before the end was repeated; one after it overtook a lost one, and will be.
        if offset == upload.end and not upload.is_committing:
            try:
                upload.replacement.write(content)
            except StoreError as error:
                # Some of the chunk may be in the file: its repeat would come after half of itself.
                self._give_up(upload, error)
                raise
            upload.end += len(content)
        return upload.end

    def begin_commit(self, transfer: TransferId, size: int) -> Callable[[], object] | None:
        """Return what replaces the old file by a complete upload, for another thread.

        `end_commit` follows once it has been called. None: it is committed already.
        """
        # The answer to the first commit was lost: its repeat must succeed.
        if self._was_done(transfer):
            return None
        upload = self._uploads.get(transfer)
        if upload is not None and upload.failure:
            raise StoreError(upload.failure)
        if upload is None or upload.end != size or upload.replacement.size != size:
            arrived = upload.end if upload is not None else 0
            raise StoreError(f"only {arrived} of the file's {size} bytes have reached the store")
        upload.is_committing = True
        return upload.replacement.commit

    def end_commit(self, transfer: TransferId, error: BaseException | None) -> None:
        """Note how the commit of an upload ended."""
        upload = self._uploads[transfer]
        upload.is_committing = False
        upload.touched = time.monotonic()
        if error is not None:
            self._give_up(upload, error)
            return
        del self._uploads[transfer]
        self._settle(transfer, is_done=True)

    def open(self, transfer: TransferId, name: str) -> int:
        """Hold a file open for reading; return its size."""
        reading = self._downloads.get(transfer)
        if reading is None:
            self._check_new(transfer)
            path = self._path(name)
            try:
                reading = self._downloads[transfer] = _Reading(path.open("rb"))
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
        return os.fstat(reading.file.fileno()).st_size

    def read(self, transfer: TransferId, offset: int, length: int) -> bytes:
        """Read bytes of an open file, one chunk at most."""
        reading = self._downloads.get(transfer)
        if reading is None:
            raise StoreError(_FORGOTTEN)
        reading.touched = time.monotonic()
        # Offsets come from the network, and may be more than the system can express.
        if length < 0 or not 0 <= offset <= os.fstat(reading.file.fileno()).st_size:
            raise StoreError(f"the file has no {length} bytes from byte {offset} on")
        return os.pread(reading.file.fileno(), min(length, CHUNK_BYTES), offset)

    def close(self, transfer: TransferId) -> None:
        """Forget a transfer; an upload that is not committed leaves nothing."""
        upload = self._uploads.get(transfer)
        # Another thread is busy with an upload that is being committed; `end_commit` forgets it.
        if upload is not None and upload.is_committing:
            return
        if upload is not None:
            del self._uploads[transfer]
            upload.replacement.abandon()
        self._settle(transfer, is_done=self._settled.get(transfer, False))
        reading = self._downloads.pop(transfer, None)
        if reading is not None:
            reading.file.close()

    def close_unless(self, is_live: Callable[[str, float], bool]) -> None:
        """Drop every transfer that is not live, given its owner and its idle seconds."""
        now = time.monotonic()
        touched = {key: one.touched for key, one in self._uploads.items()}
        touched |= {key: one.touched for key, one in self._downloads.items()}
        for transfer, at in touched.items():
            if not is_live(transfer[0], now - at):
                self.close(transfer)

    def list_files(self, number: int, folder: str) -> FileList:
        """List the complete and the incoming files of a folder."""
        if folder not in FOLDERS:
            raise StoreError(f"the store has no folder '{folder}'")
        there = (f"{folder}/{path.name}" for path in (self._root / folder).glob("*.safetensors"))
        incoming = (one.name for one in self._uploads.values())
        return FileList(
            number,
            names=tuple(sorted(name for name in there if _NAME.fullmatch(name))),
            incoming=tuple(name for name in incoming if name.startswith(f"{folder}/")),
        )

    def begin_link(self, request: TransferId, name: str, other: str) -> Callable[[], object] | None:
        """Return what keeps a file under a second name, for another thread.

        `end_link` follows once it has been called. None: that has been done, and the second name
        may be another file's by now.
        """
        path, second = self._path(name), self._path(other)
        return None if self._was_done(request) else lambda: link_atomically(path, second)

    def end_link(self, request: TransferId, error: BaseException | None) -> None:
        """Note how a link ended."""
        if error is None:
            self._settle(request, is_done=True)

    def delete(self, request: TransferId, names: tuple[str, ...]) -> None:
        """Delete files; names that do not exist are skipped, and files that came later stay."""
        paths = [self._path(name) for name in names]
        if not self._was_done(request):
            for path in paths:
                path.unlink(missing_ok=True)
            self._settle(request, is_done=True)

    def _check_new(self, transfer: TransferId) -> None:
        if transfer in self._settled:
            raise StoreError(_FORGOTTEN)

    def _was_done(self, transfer: TransferId) -> bool:
        """Return whether it was carried out before; one that was given up is refused."""
        if not self._settled.get(transfer, True):
            raise StoreError(_FORGOTTEN)
        return transfer in self._settled

    def _settle(self, transfer: TransferId, *, is_done: bool) -> None:
        self._settled[transfer] = is_done
        if len(self._settled) > _NUM_REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def _give_up(self, upload: _Uploading, error: BaseException) -> None:
        upload.failure = str(error)
        upload.replacement.abandon()

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise StoreError(f"'{name}' is not the name of a file in the store")
        return self._root / name
