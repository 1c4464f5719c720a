"""Checkpoints: the whole state of a run in one file, written in one stroke by the chief.

A file holds named tensors (safetensors) and the position as JSON in its header. Writing goes
through a temporary file, so a crash leaves the previous checkpoint; if the newest one cannot be
read back, the one before it is taken.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from phalanx.errors import StoreError
from phalanx.records.position import CHECKPOINT_PATTERN, Position
from phalanx.spec.job import CheckpointSpec
from phalanx.worker.tensorfile import write_tensors

_log = logging.getLogger(__name__)

_BEST = "best.safetensors"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: Where the files lie.
        spec: How many are kept.
    """

    def __init__(self, directory: Path, spec: CheckpointSpec) -> None:
        self._directory = directory
        self._spec = spec

    def write(self, position: Position, tensors: dict[str, torch.Tensor]) -> Path:
        """Write a checkpoint, then drop the ones that are no longer kept.

        Any that claims to be of a later moment goes too: it could not be read when the run was
        taken up before it, and would keep a good one out.
        """
        path = self.path_at(position)
        metadata = {"position": msgspec.json.encode(position).decode()}
        write_tensors(path, tensors, metadata)
        past = [one for one in self._newest_first() if one.name <= path.name]
        for old in set(self._newest_first()) - set(past[: self._spec.keep]):
            old.unlink(missing_ok=True)
        return path

    def path_at(self, position: Position) -> Path:
        """Where the checkpoint of a moment lies."""
        return self._directory / f"samples-{position.samples:012d}.safetensors"

    def pinned(self, path: Path) -> Path:
        """Where a checkpoint lies that is kept for the rest of the run."""
        return self._directory / path.name.replace("samples-", "switch-")

    def pin(self, path: Path) -> None:
        """Keep a checkpoint for the rest of the run."""
        self._keep_as(path, self.pinned(path).name)

    def go_back_to(self, path: Path) -> None:
        """Make a pinned checkpoint the newest again: what came after it is given up."""
        name = path.name.replace("switch-", "samples-")
        self._keep_as(path, name)
        for later in self._newest_first():
            if later.name > name:
                later.unlink(missing_ok=True)

    def mark_best(self, path: Path) -> None:
        """Keep a checkpoint as the best one, whatever happens to the newest."""
        self._keep_as(path, _BEST)

    def _keep_as(self, path: Path, name: str) -> None:
        temporary = self._directory / f".{name}"
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:
            # Some file systems have no hard links.
            shutil.copyfile(path, temporary)
        os.replace(temporary, self._directory / name)

    def read_newest(self) -> tuple[Path, Position, dict[str, torch.Tensor]] | None:
        """The newest checkpoint that can be read, or nothing if there is none.

        Raises:
            StoreError: There are checkpoints, but none that can be read.
        """
        paths = self._newest_first()
        for path in paths:
            try:
                return path, *read_checkpoint(path)
            except StoreError as error:
                _log.warning("%s; trying the one before it", error)
        if not paths:
            return None
        raise StoreError(
            f"none of the {len(paths)} checkpoints in {self._directory} can be read; "
            "delete them to start from the beginning",
            path=str(self._directory),
        )

    def _newest_first(self) -> list[Path]:
        return sorted(self._directory.glob(CHECKPOINT_PATTERN), reverse=True)


def read_checkpoint(path: Path) -> tuple[Position, dict[str, torch.Tensor]]:
    """The position and the tensors of a checkpoint file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        position = msgspec.json.decode(metadata["position"], type=Position)
    except (OSError, SafetensorError, KeyError, msgspec.DecodeError) as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error}", path=str(path)) from error
    return position, tensors
