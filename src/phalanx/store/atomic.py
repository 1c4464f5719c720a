"""Writing a file in one stroke: temporary file, fsync, rename, fsync of the directory.

A reader sees the old content or the new, never a mixture; a crash or a full disk leaves the old.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from phalanx.errors import StoreError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, durably."""
    replace_atomically(path, lambda file: file.write(content))


def replace_atomically(path: Path, write: Callable[[BinaryIO], object]) -> int:
    """Replace `path` by whatever `write` puts into the file; returns the size in bytes.

    Raises:
        StoreError: The disk is full or the directory cannot be written; `path` is as it was.
    """
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(temporary, path)
        temporary = None
        _sync_directory(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; free some space or choose another directory",
            path=str(path),
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return size


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
