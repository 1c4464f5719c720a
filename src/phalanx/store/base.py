"""Interface of the checkpoint store: files of named tensors that outlive their writers.

A run has one store, the run directory on the controller's machine. A process that shares this
directory opens a `LocalStore`, any other a `RemoteStore`. File names are the same in both, such as
`servers/server-0.safetensors`, and so are the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic

from phalanx.store.tensors import EVERYTHING, TensorBundle, TensorT


class CheckpointStore(ABC, Generic[TensorT]):
    """Save and load files of named tensors; each file is whole or absent.

    Every method raises `StoreError` if it fails, and in a remote store
    `TimeoutExpired` if the controller does not answer.

    Attributes:
        is_remote: Whether files cross the network: saving is slow, and better done in background.
        location: Where the files are, for messages.
    """

    is_remote: bool
    location: str

    @abstractmethod
    def save(self, name: str, tensors: Mapping[str, TensorT], metadata: Mapping[str, str]) -> int:
        """Replace a file atomically and durably; return its size in bytes."""

    @abstractmethod
    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> TensorBundle[TensorT]:
        """Load a file, or some of it; nothing else is read or sent.

        Args:
            name: Which file.
            only: Load only tensors whose names begin with one of these.
            part: Load only these rows of each tensor, [first, last); scalars are loaded whole.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """List the files of a folder, sorted."""

    @abstractmethod
    def is_coming(self, name: str) -> bool:
        """Tell whether a process is uploading a file now; False where that cannot be known."""

    @abstractmethod
    def keep_as(self, name: str, other: str) -> None:
        """Link a file under a second name."""

    @abstractmethod
    def drop(self, names: Sequence[str]) -> None:
        """Delete files; names that do not exist are skipped."""

    def has(self, name: str) -> bool:
        """Tell whether a file exists."""
        return name in self.names(folder_of(name))


def folder_of(name: str) -> str:
    """Return the folder of a file name."""
    return name.split("/", maxsplit=1)[0]
