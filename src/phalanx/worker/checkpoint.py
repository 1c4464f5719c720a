"""Checkpoints: the whole state of a run in one file, written in one stroke by the chief.

A file holds named tensors (safetensors) and the position as JSON in its header. A crash while it is
written leaves the previous checkpoint; if the newest one cannot be read back, the one before it is
taken. Where they lie, and how they get there, is the depot's business.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from phalanx.errors import StoreError
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec
from phalanx.worker.background import Background
from phalanx.worker.depot import EVERYTHING, Depot

_log = logging.getLogger(__name__)

NEWEST = "newest"
"""Stands for the newest checkpoint that can be read."""
_FOLDER, _BEST = "checkpoints", "best.safetensors"


@dataclass(frozen=True)
class Written:
    """A checkpoint that has been written."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Taken:
    """What was read from a checkpoint."""

    name: str
    position: Position
    tensors: dict[str, torch.Tensor]


class Checkpoints:
    """The checkpoints of one run, known by their names.

    Args:
        depot: Where the files lie.
        spec: How many are kept.
    """

    def __init__(self, depot: Depot, spec: CheckpointSpec) -> None:
        self._depot = depot
        self._spec = spec
        self.background = Background("checkpoints")
        """Where they are written when training does not wait for it; one after the other, because
        an older one that is written last would push newer ones out."""

    @property
    def is_far(self) -> bool:
        """Whether writing takes long."""
        return self._depot.is_far

    def write(self, position: Position, tensors: Mapping[str, torch.Tensor]) -> Written:
        """Write a checkpoint, then drop the ones that are no longer kept.

        Any that claims to be of a later moment goes too: it could not be read when the run was
        taken up before it, and would keep a good one out.
        """
        name = name_at(position)
        metadata = {"position": msgspec.json.encode(position).decode()}
        size_bytes = self._depot.save(_path(name), tensors, metadata)
        names = self._newest_first()
        past = [one for one in names if one <= name]
        self._drop(set(names) - set(past[: self._spec.keep]))
        return Written(name, size_bytes)

    def pin(self, name: str) -> None:
        """Keep a checkpoint for the rest of the run."""
        self._depot.keep_as(_path(name), _path(pinned(name)))

    def go_back_to(self, name: str) -> None:
        """Make a pinned checkpoint the newest again: what came after it is given up."""
        newest = unpinned(name)
        self._depot.keep_as(_path(name), _path(newest))
        self._drop({later for later in self._newest_first() if later > newest})

    def mark_best(self, name: str) -> None:
        """Keep a checkpoint as the best one, whatever happens to the newest."""
        self._depot.keep_as(_path(name), _path(_BEST))

    def has(self, name: str) -> bool:
        """Whether a checkpoint is there."""
        return self._depot.has(_path(name))

    def is_coming(self, name: str) -> bool:
        """Whether a checkpoint is on its way, as far as is known."""
        return self._depot.is_coming(_path(name))

    def keep_part(self, name: str, position: bytes, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a part of a state under a name of its own; nothing is dropped for it."""
        self._depot.save(_path(name), tensors, {"position": position.decode()})

    def take(
        self,
        name: str,
        *,
        only: Sequence[str] = EVERYTHING,
        part: tuple[int, int] | None = None,
    ) -> Taken | None:
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
        """Where a checkpoint lies, for people."""
        return f"{self._depot.place}/{_FOLDER}/{name}".rstrip("/")

    def _read(self, name: str, only: Sequence[str], part: tuple[int, int] | None) -> Taken:
        try:
            loaded = self._depot.load(_path(name), only=only, part=part)
            position = msgspec.json.decode(loaded.metadata["position"], type=Position)
        except (StoreError, KeyError, msgspec.DecodeError) as error:
            where = self.where(name)
            message = f"cannot read the checkpoint {where}: {error}"
            raise StoreError(message, path=where) from error
        return Taken(name, position, loaded.tensors)

    def _newest_first(self) -> list[str]:
        names = (one.removeprefix(f"{_FOLDER}/") for one in self._depot.names(_FOLDER))
        return sorted((one for one in names if one.startswith("samples-")), reverse=True)

    def _drop(self, names: set[str]) -> None:
        self._depot.drop([_path(name) for name in sorted(names)])


def name_at(position: Position) -> str:
    """The name of the checkpoint of a moment."""
    return f"samples-{position.samples:012d}.safetensors"


def pinned(name: str) -> str:
    """The name of a checkpoint that is kept for the rest of the run."""
    return name.replace("samples-", "switch-")


def unpinned(name: str) -> str:
    """The name that a pinned checkpoint had when it was written."""
    return name.replace("switch-", "samples-")


def _path(name: str) -> str:
    return f"{_FOLDER}/{name}"
