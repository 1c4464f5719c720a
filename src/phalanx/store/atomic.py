"""Write a file atomically: temporary file, fsync, rename, fsync of the directory.

A reader sees the old content or the new, never a mixture; a crash or a full disk leaves the old.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from phalanx.errors import StoreError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, durably."""
    replace_atomically(path, lambda file: file.write(content))


def replace_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, at_least: int = 0
) -> int:
    """Replace `path` by what `write` puts into the file; return the size in bytes.

    Args:
        path: The file.
        write: Writes its new content.
        at_least: Bytes that `write` is known to need. Nothing is written if they are not free: the
            attempt would take the last space from the logs that are to say why the run ends.

    Raises:
        StoreError: The disk is full or the directory cannot be written; `path` is as it was.
    """
    replacement = Replacement(path)
    try:
        with _as_store_error(path):
            if at_least:
                _require_space(path.parent, at_least)
            write(replacement.file)
        return replacement.commit()
    finally:
        replacement.abandon()


def link_atomically(path: Path, other: Path) -> None:
    """Link a file under a second name of the same directory, replacing that atomically, durably.

    Raises:
        StoreError: The file is not there, or the directory cannot be written.
    """
    temporary = other.with_name(f".{other.name}")
    with _as_store_error(other):
        temporary.unlink(missing_ok=True)
        try:
            _link_or_copy(path, temporary)
            os.replace(temporary, other)
        finally:
            # Also after success: where both are names of one file already, the system leaves both.
            temporary.unlink(missing_ok=True)
        _sync(other.parent)


class Replacement:
    """New content for a file, written beside it until it replaces it.

    Args:
        path: The file that will be replaced.

    Raises:
        StoreError: By any method: the disk is full or the directory cannot be written; `path` is
            as it was.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with _as_store_error(path):
            # Not by `tempfile`: its files are private, and colleagues read one another's runs. The
            # mode follows the umask, as that of the logs does.
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._temporary: Path | None = temporary
        self.file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, content: bytes | memoryview) -> None:
        """Append to the new content; after an error it is of no use any more."""
        with _as_store_error(self._path):
            self.file.write(content)

    @property
    def size(self) -> int:
        """Number of bytes written so far."""
        return self.file.tell()

    def commit(self) -> int:
        """Replace the file, durably; return the size in bytes."""
        assert self._temporary is not None, "committed or abandoned before"
        with _as_store_error(self._path):
            self.file.flush()
            os.fsync(self.file.fileno())
            size = self.file.tell()
            self.file.close()
            os.replace(self._temporary, self._path)
            self._temporary = None
            _sync(self._path.parent)
        return size

    def abandon(self) -> None:
        """Delete the new content, unless it has been committed."""
        if self._temporary is not None:
            temporary, self._temporary = self._temporary, None
            # Closing may flush to a full disk; the content is not wanted any more.
            with suppress(OSError):
                self.file.close()
            temporary.unlink(missing_ok=True)


def _link_or_copy(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:
        # Some file systems have no hard links. The copy reaches the disk before its name does:
        # after a power failure the name would otherwise lead to an empty file.
        shutil.copyfile(path, other)
        _sync(other)


@contextmanager
def _as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; free some space or choose another directory",
            path=str(path),
        ) from error


def _require_space(directory: Path, size: int) -> None:
    disk = os.statvfs(directory)
    num_blocks = disk.f_bavail if os.geteuid() else disk.f_bfree
    # Some network file systems tell nothing of themselves: no blocks at all, and nothing to refuse.
    if disk.f_blocks and num_blocks * disk.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
