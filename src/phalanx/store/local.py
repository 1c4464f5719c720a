"""Checkpoint store of a process that shares the run directory: plain files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from typing_extensions import override

from phalanx.errors import StoreError
from phalanx.store.atomic import link_atomically, replace_atomically
from phalanx.store.base import CheckpointStore
from phalanx.store.tensors import (
    EVERYTHING,
    TensorAdapter,
    TensorBundle,
    TensorT,
    read_header,
    read_tensors,
    write_tensors,
)


class LocalStore(CheckpointStore[TensorT]):
    """Save and load files in the run directory itself.

    Args:
        root: The run directory.
        adapter: The framework whose tensors are saved and loaded.
    """

    is_remote = False

    def __init__(self, root: Path, adapter: TensorAdapter[TensorT]) -> None:
        self._root = root
        self._adapter = adapter
        self.location = str(root)

    @override
    def save(self, name: str, tensors: Mapping[str, TensorT], metadata: Mapping[str, str]) -> int:
        path = self._root / name
        views = {key: self._adapter.view(tensor) for key, tensor in tensors.items()}
        # A directory that cannot be made is reported by the write, with the path of the file.
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
        return replace_atomically(
            path,
            lambda file: write_tensors(file, views, metadata),
            at_least=sum(view.memory.nbytes for view in views.values()),
        )

    @override
    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> TensorBundle[TensorT]:
        # Read into memory rather than mapped: a mapped file that is truncated meanwhile would kill
        # the process with SIGBUS.
        with _open(self._root / name) as file:
            return read_tensors(file, self._adapter, only=only, part=part)

    @override
    def names(self, folder: str) -> list[str]:
        # Files that begin with a dot are being written, or were left by a crash.
        found = (self._root / folder).glob("[!.]*.safetensors")
        return sorted(f"{folder}/{path.name}" for path in found)

    @override
    def is_coming(self, name: str) -> bool:
        return False

    @override
    def keep_as(self, name: str, other: str) -> None:
        link_atomically(self._root / name, self._root / other)

    @override
    def drop(self, names: Sequence[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a file without its tensors.

    Raises:
        StoreError: The file cannot be read, or it is damaged or cut off.
    """
    with _open(path) as file:
        metadata, _ = read_header(file)
        return metadata


@contextmanager
def _open(path: Path) -> Iterator[_LocalFile]:
    try:
        with path.open("rb") as file:
            yield _LocalFile(file)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise StoreError(message, path=str(path)) from error
    except StoreError as error:
        raise StoreError(f"cannot read {path}: {error}", path=str(path)) from error


class _LocalFile:
    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def read_into(self, target: memoryview, offset: int) -> None:
        self._file.seek(offset)
        # The buffered reader goes on until the target is full or the file ends.
        if self._file.readinto(target) != len(target):
            raise StoreError(f"it ends within the {len(target)} bytes from byte {offset} on")
