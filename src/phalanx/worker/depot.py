"""Where checkpoints and the state of servers lie, for a process of the run: near or far.

One run has one place for them, the run directory on the controller's machine. A process that
shares it writes and reads files; one on another machine goes through the controller (see
`remote_depot`). Names are the same for both, such as `servers/server-0.safetensors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from typing_extensions import override

from phalanx.errors import StoreError
from phalanx.store.atomic import link_atomically, replace_atomically
from phalanx.worker.tensorfile import write_tensors

EVERYTHING = ("",)


@dataclass(frozen=True)
class Loaded:
    """What was read from a file."""

    metadata: dict[str, str]
    tensors: dict[str, torch.Tensor]


class Depot(ABC):
    """Files of named tensors; each is whole or absent.

    Every method raises `StoreError` if it cannot do what it should, and a far one `TimeoutExpired`
    if the controller does not answer.

    Attributes:
        is_far: Whether files travel, so that writing takes long and is better done meanwhile.
        place: Where the files are, for messages.
    """

    is_far: bool
    place: str

    @abstractmethod
    def save(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> int:
        """Replace a file in one stroke, durably; returns its size in bytes."""

    @abstractmethod
    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> Loaded:
        """Read a file.

        Args:
            name: Which.
            only: Only tensors whose names begin with one of these.
            part: Only these rows of each tensor, first and past the last; single numbers whole.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The files of a folder, sorted."""

    @abstractmethod
    def is_coming(self, name: str) -> bool:
        """Whether somebody is just sending a file; False where that cannot be known."""

    @abstractmethod
    def keep_as(self, name: str, other: str) -> None:
        """Let a file be found under another name as well."""

    @abstractmethod
    def drop(self, names: Sequence[str]) -> None:
        """Remove files, those that are there."""

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return name in self.names(name.split("/", maxsplit=1)[0])


class LocalDepot(Depot):
    """In the run directory itself.

    Args:
        root: The run directory.
    """

    is_far = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self.place = str(root)

    @override
    def save(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> int:
        path = self._root / name
        # What is wrong here is told better by the writing itself.
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
        return replace_atomically(path, lambda file: write_tensors(file, tensors, metadata))

    @override
    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> Loaded:
        try:
            with safe_open(self._root / name, framework="pt") as file:
                wanted = [one for one in file.keys() if one.startswith(tuple(only))]  # noqa: SIM118
                tensors = {}
                for one in wanted:
                    if part is None or not file.get_slice(one).get_shape():
                        tensors[one] = file.get_tensor(one)
                    else:
                        tensors[one] = file.get_slice(one)[slice(*part)]
                return Loaded(dict(file.metadata() or {}), tensors)
        except (OSError, SafetensorError) as error:
            path = self._root / name
            raise StoreError(f"cannot read {path}: {error}", path=str(path)) from error

    @override
    def names(self, folder: str) -> list[str]:
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
