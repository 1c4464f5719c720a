"""Write and read checkpoints: the whole state of a run in one file, written by the chief.

A file holds named tensors (safetensors) and the position as JSON in its header. Writes are atomic:
a crash leaves the previous checkpoint, and a file that cannot be read is skipped for the one before
it. Where files are is up to the store.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import msgspec

from phalanx.errors import StoreError
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec
from phalanx.store.base import CheckpointStore
from phalanx.store.tensors import EVERYTHING, TensorT
from phalanx.wire.moments import reach

_log = logging.getLogger(__name__)

NEWEST = "newest"
"""Stands for the newest checkpoint that can be read."""
_FOLDER, _BEST = "checkpoints", "best.safetensors"


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that has been written."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class LoadedCheckpoint(Generic[TensorT]):
    """Content of a checkpoint that was read."""

    name: str
    position: Position
    tensors: dict[str, TensorT]


class Checkpoints(Generic[TensorT]):
    """The checkpoints of one run, known by their names.

    Args:
        store: Where the files are.
        spec: How many are kept.
    """

    def __init__(self, store: CheckpointStore[TensorT], spec: CheckpointSpec) -> None:
        self._store = store
        self._spec = spec

    @property
    def is_remote(self) -> bool:
        """Whether files cross the network, so that writing takes long."""
        return self._store.is_remote

    def write(
        self,
        position: Position,
        tensors: Mapping[str, TensorT],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> WrittenCheckpoint:
        """Write a checkpoint, then delete the ones that are no longer kept.

        Args:
            position: Where the run stands.
            tensors: The state.
            metadata: Further entries of the header.
        """
        name = name_at(position)
        header = {"position": msgspec.json.encode(position).decode()} | dict(metadata or {})
        reach("writing checkpoint")
        size_bytes = self._store.save(_path(name), tensors, header)
        reach("checkpoint written")
        names = self._newest_first()
        # A checkpoint of a later position goes too: it could not be read when the run was
        # resumed before it, and would push a good one out.
        past = [one for one in names if one <= name]
        self._drop(set(names) - set(past[: self._spec.keep]))
        return WrittenCheckpoint(name, size_bytes)

    def pin(self, name: str) -> None:
        """Keep a checkpoint for the rest of the run, however many follow."""
        self._store.keep_as(_path(name), _path(pinned(name)))

    def go_back_to(self, name: str) -> None:
        """Roll back to a pinned checkpoint: make it the newest, delete what came after it."""
        newest = unpinned(name)
        self._store.keep_as(_path(name), _path(newest))
        self._drop({later for later in self._newest_first() if later > newest})

    def mark_best(self, name: str) -> None:
        """Keep a checkpoint as the best one until another is."""
        self._store.keep_as(_path(name), _path(_BEST))

    def has(self, name: str) -> bool:
        """Tell whether a checkpoint exists."""
        return self._store.has(_path(name))

    def is_coming(self, name: str) -> bool:
        """Tell whether a checkpoint is being uploaded, as far as is known."""
        return self._store.is_coming(_path(name))

    def write_partial(self, name: str, position: bytes, tensors: Mapping[str, TensorT]) -> None:
        """Write some tensors of a state under a given name; nothing is deleted for it."""
        self._store.save(_path(name), tensors, {"position": position.decode()})

    def load(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> LoadedCheckpoint[TensorT] | None:
        """Read a checkpoint.

        Args:
            name: Which; `NEWEST`: the newest that can be read.
            only: Only tensors whose names begin with one of these.
            part: Only these rows of each tensor.

        Returns:
            What was read; None: the newest was asked for, and there is none.

        Raises:
            StoreError: It cannot be read, or none of those that are there.
        """
        if name != NEWEST:
            return self._read(name, only, part)
        names = self._newest_first()
        for one in names:
            try:
                return self._read(one, only, part)
            except StoreError as error:
                _log.warning("%s; trying the one before it", error)
        if not names:
            return None
        folder = self.where("")
        raise StoreError(
            f"none of the {len(names)} checkpoints in {folder} can be read; "
            "delete them to start from the beginning",
            path=folder,
        )

    def where(self, name: str) -> str:
        """Return where a checkpoint is, for messages."""
        return f"{self._store.location}/{_FOLDER}/{name}".rstrip("/")

    def _read(
        self, name: str, only: Sequence[str], part: tuple[int, int] | None
    ) -> LoadedCheckpoint[TensorT]:
        try:
            loaded = self._store.load(_path(name), only=only, part=part)
            position = msgspec.json.decode(loaded.metadata["position"], type=Position)
        except (StoreError, KeyError, msgspec.DecodeError) as error:
            where = self.where(name)
            message = f"cannot read the checkpoint {where}: {error}"
            raise StoreError(message, path=where) from error
        return LoadedCheckpoint(name, position, loaded.tensors)

    def _newest_first(self) -> list[str]:
        names = (one.removeprefix(f"{_FOLDER}/") for one in self._store.names(_FOLDER))
        return sorted((one for one in names if one.startswith("samples-")), reverse=True)

    def _drop(self, names: set[str]) -> None:
        self._store.drop([_path(name) for name in sorted(names)])


def name_at(position: Position) -> str:
    """Return the name of the checkpoint of a position; names sort by age."""
    return f"samples-{position.samples:012d}.safetensors"


def pinned(name: str) -> str:
    """Return the name under which a checkpoint is kept for the rest of the run."""
    return name.replace("samples-", "switch-")


def unpinned(name: str) -> str:
    """Return the name that a pinned checkpoint had when it was written."""
    return name.replace("switch-", "samples-")


def _path(name: str) -> str:
    return f"{_FOLDER}/{name}"
