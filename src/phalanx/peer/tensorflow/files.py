"""Named arrays in files of the run: in its directory if that is shared, else by way of the depot.

Without torch in the first case. The depot speaks of torch's tensors, so a process of a run without
a shared directory holds both frameworks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy
from typing_extensions import override

from phalanx.errors import StoreError
from phalanx.store.atomic import link_atomically, write_atomically
from phalanx.worker.context import WorkerContext

Arrays = dict[str, npt.NDArray[np.float32]]


class ArrayFiles(ABC):
    """Files of named arrays; each is whole or absent."""

    @abstractmethod
    def save(self, name: str, arrays: Arrays, metadata: dict[str, str]) -> int:
        """Replace a file in one stroke, durably; returns its size in bytes."""

    @abstractmethod
    def load(self, name: str) -> tuple[dict[str, str], Arrays]:
        """Metadata and arrays of a file.

        Raises:
            StoreError: It cannot be read.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The files of a folder, sorted."""

    @abstractmethod
    def keep_as(self, name: str, other: str) -> None:
        """Let a file be found under another name as well."""

    @abstractmethod
    def drop(self, names: list[str]) -> None:
        """Remove files, those that are there."""


class LocalFiles(ArrayFiles):
    """In the run directory itself.

    Args:
        root: The run directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def save(self, name: str, arrays: Arrays, metadata: dict[str, str]) -> int:
        content = safetensors_numpy.save(arrays, metadata)
        path = self._root / name
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from error
        write_atomically(path, content)
        return len(content)

    @override
    def load(self, name: str) -> tuple[dict[str, str], Arrays]:
        path = self._root / name
        try:
            with safe_open(path, framework="np") as file:
                arrays = {one: file.get_tensor(one) for one in file.keys()}  # noqa: SIM118
                return dict(file.metadata() or {}), arrays
        except (OSError, SafetensorError) as error:
            raise StoreError(f"cannot read {path}: {error}", path=str(path)) from error

    @override
    def names(self, folder: str) -> list[str]:
        found = (self._root / folder).glob("[!.]*.safetensors")
        return sorted(f"{folder}/{path.name}" for path in found)

    @override
    def keep_as(self, name: str, other: str) -> None:
        link_atomically(self._root / name, self._root / other)

    @override
    def drop(self, names: list[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)


class FarFiles(ArrayFiles):
    """On the controller's machine.

    Args:
        station: Of this process.
    """

    def __init__(self, station: WorkerContext) -> None:
        self._depot = station.depot

    @override
    def save(self, name: str, arrays: Arrays, metadata: dict[str, str]) -> int:
        import torch

        tensors = {
            one: torch.from_numpy(np.ascontiguousarray(array)) for one, array in arrays.items()
        }
        return self._depot.save(name, tensors, metadata)

    @override
    def load(self, name: str) -> tuple[dict[str, str], Arrays]:
        loaded = self._depot.load(name)
        return loaded.metadata, {one: tensor.numpy() for one, tensor in loaded.tensors.items()}

    @override
    def names(self, folder: str) -> list[str]:
        return self._depot.names(folder)

    @override
    def keep_as(self, name: str, other: str) -> None:
        self._depot.keep_as(name, other)

    @override
    def drop(self, names: list[str]) -> None:
        self._depot.drop(names)


def open_files(station: WorkerContext) -> ArrayFiles:
    """The files of a process's run."""
    if station.spec.shared_run_dir:
        return LocalFiles(station.run.path)
    return FarFiles(station)
