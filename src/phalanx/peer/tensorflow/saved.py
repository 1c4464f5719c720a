"""Checkpoints of this backend: named arrays and the position, by the rules of the native ones.

The same file format, names and rules of keeping. Arrays are named by variable, so a run goes on
only under the backend that began it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from phalanx.errors import StoreError
from phalanx.peer.tensorflow.files import ArrayFiles, Arrays
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec

_FOLDER = "checkpoints"
_BEST = f"{_FOLDER}/best.safetensors"


@dataclass(frozen=True)
class Written:
    """A checkpoint that has been written."""

    name: str
    size_bytes: int


class SavedStates:
    """The checkpoints of one run.

    Args:
        files: Where they lie.
        spec: How many are kept.
    """

    def __init__(self, files: ArrayFiles, spec: CheckpointSpec) -> None:
        self._files = files
        self._spec = spec

    def write(
        self,
        position: Position,
        state: Arrays,
        *,
        order: Sequence[str],
        best: bool,
        pin: bool = False,
    ) -> Written:
        """Write a checkpoint, then drop the ones that are no longer kept.

        Args:
            position: Where the run stands.
            state: Of the network.
            order: Names of its arrays in the order of the model's variables.
            best: Keep it as the best one, whatever happens to the newest.
            pin: Keep it for the rest of the run.
        """
        name = f"{_FOLDER}/samples-{position.samples:012d}.safetensors"
        metadata = {
            "position": msgspec.json.encode(position).decode(),
            "backend": "tensorflow",
            "variables": msgspec.json.encode(list(order)).decode(),
        }
        size_bytes = self._files.save(name, state, metadata)
        if best:
            self._files.keep_as(name, _BEST)
        if pin:
            self._files.keep_as(name, name.replace("samples-", "switch-"))
        names = self._newest_first()
        past = [one for one in names if one <= name]
        self._files.drop(sorted(set(names) - set(past[: self._spec.keep])))
        return Written(name.rpartition("/")[2], size_bytes)

    def read_newest(self) -> tuple[str, Position, Arrays] | None:
        """The newest checkpoint, or nothing if there is none.

        Raises:
            StoreError: It cannot be read.
        """
        names = self._newest_first()
        if not names:
            return None
        metadata, state = self._files.load(names[0])
        try:
            position = msgspec.json.decode(metadata["position"], type=Position)
        except (KeyError, msgspec.DecodeError) as error:
            raise StoreError(f"the checkpoint {names[0]} is damaged: {error}") from error
        return names[0].rpartition("/")[2], position, state

    def _newest_first(self) -> list[str]:
        found = [one for one in self._files.names(_FOLDER) if "/samples-" in one]
        return sorted(found, reverse=True)
