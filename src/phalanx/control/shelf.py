"""The files of a run that processes on other machines write and read: whole, or as they were.

Knows names, transfers and their owners; sockets are `depot`'s business. A file that comes in grows
beside the one that it will replace. One that is read stays open, so that its reader gets all of it,
even if it is replaced or removed meanwhile.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from phalanx.errors import StoreError
from phalanx.store.atomic import Replacement, link_atomically
from phalanx.wire.depot import PART_BYTES, Found

FOLDERS = ("checkpoints", "servers")
_NAME = re.compile(rf"({'|'.join(FOLDERS)})/[A-Za-z0-9][A-Za-z0-9_-]*\.safetensors")
# Commits that are remembered, in case their answers are lost and they are asked for again.
_NUM_REMEMBERED = 256

Transfer = tuple[str, int]
"""Whose, and which."""


@dataclass
class _Incoming:
    name: str
    replacement: Replacement
    end: int = 0
    touched: float = field(default_factory=time.monotonic)


@dataclass
class _Outgoing:
    file: BinaryIO
    touched: float = field(default_factory=time.monotonic)


class Shelf:
    """The files below one run directory; used from one thread.

    Every method raises `StoreError` with a reason for people if it cannot do what it should.

    Args:
        root: The run directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming: dict[Transfer, _Incoming] = {}
        self._outgoing: dict[Transfer, _Outgoing] = {}
        self._committed: deque[Transfer] = deque(maxlen=_NUM_REMEMBERED)

    def begin(self, transfer: Transfer, name: str) -> int:
        """Take a file; returns how much of it has arrived, should it have begun before."""
        known = self._incoming.get(transfer)
        if known is None:
            path = self._path(name)
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as error:
                raise StoreError(f"cannot write {path}: {error.strerror}") from error
            known = self._incoming[transfer] = _Incoming(name, Replacement(path))
        return known.end

    def append(self, transfer: Transfer, offset: int, content: memoryview) -> int:
        """Add the next part, unless it is not the next; returns how much has arrived."""
        incoming = self._incoming.get(transfer)
        if incoming is None:
            raise StoreError("the depot has given up this transfer: it had heard nothing for long")
        incoming.touched = time.monotonic()
        if offset == incoming.end:
            incoming.replacement.write(content)
            incoming.end += len(content)
        return incoming.end

    def commit(self, transfer: Transfer, size: int) -> None:
        """Let a file that has arrived take its place."""
        if transfer in self._committed:
            return
        incoming = self._incoming.get(transfer)
        if incoming is None or incoming.end != size:
            arrived = incoming.end if incoming is not None else 0
            raise StoreError(f"only {arrived} of the file's {size} bytes have reached the depot")
        incoming.replacement.commit()
        del self._incoming[transfer]
        self._committed.append(transfer)

    def open(self, transfer: Transfer, name: str) -> int:
        """Hold a file to be read; returns its size."""
        known = self._outgoing.get(transfer)
        if known is None:
            path = self._path(name)
            try:
                known = self._outgoing[transfer] = _Outgoing(path.open("rb"))
            except OSError as error:
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
        return os.fstat(known.file.fileno()).st_size

    def read(self, transfer: Transfer, offset: int, length: int) -> bytes:
        """Bytes of a file that is held."""
        outgoing = self._outgoing.get(transfer)
        if outgoing is None:
            raise StoreError("the depot has given up this transfer: it had heard nothing for long")
        outgoing.touched = time.monotonic()
        return os.pread(outgoing.file.fileno(), min(length, PART_BYTES), offset)

    def close(self, transfer: Transfer) -> None:
        """Forget a transfer; of a file that has not been committed nothing is left."""
        incoming = self._incoming.pop(transfer, None)
        if incoming is not None:
            incoming.replacement.abandon()
        outgoing = self._outgoing.pop(transfer, None)
        if outgoing is not None:
            outgoing.file.close()

    def close_unless(self, goes_on: Callable[[str, float], bool]) -> None:
        """Forget the transfers of which this is no longer true, given owner and idle seconds."""
        now = time.monotonic()
        touched = {key: one.touched for key, one in self._incoming.items()}
        touched |= {key: one.touched for key, one in self._outgoing.items()}
        for transfer, at in touched.items():
            if not goes_on(transfer[0], now - at):
                self.close(transfer)

    def find(self, number: int, folder: str) -> Found:
        """What is in a folder, and what is on its way there."""
        if folder not in FOLDERS:
            raise StoreError(f"the depot has no folder '{folder}'")
        there = (f"{folder}/{path.name}" for path in (self._root / folder).glob("*.safetensors"))
        coming = (one.name for one in self._incoming.values())
        return Found(
            number,
            names=tuple(sorted(name for name in there if _NAME.fullmatch(name))),
            coming=tuple(name for name in coming if name.startswith(f"{folder}/")),
        )

    def link(self, name: str, other: str) -> None:
        """Keep a file under another name as well."""
        link_atomically(self._path(name), self._path(other))

    def drop(self, names: tuple[str, ...]) -> None:
        """Remove files, those that are there."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise StoreError(f"'{name}' is no name of a file in the depot")
        return self._root / name
