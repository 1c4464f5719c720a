"""Where in the job a run stands: what a checkpoint holds besides tensors.

Written by the chief of a synchronous run, or by the controller of one with parameter servers;
either can take up the other's.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.errors import StoreError
from phalanx.store.local import read_metadata

CHECKPOINT_PATTERN = "samples-*.safetensors"


class Position(msgspec.Struct, kw_only=True):
    """Everything of the state that is not a tensor."""

    epoch: int = 0
    epoch_samples: int = 0
    epoch_loss_sum: float = 0.0
    epoch_correct: int = 0
    samples: int = 0
    updates: int = 0
    train_s: float = 0.0
    evaluate_s: float = 0.0
    num_workers: int = 1
    stopped_early: bool = False
    best_value: float | None = None
    stale_epochs: int = 0
    train_loss: float | None = None
    train_accuracy: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    phase: int = 0
    """Of a strategy with several."""
    phase_begin: int = 0
    """Samples that had been seen when that phase began."""


def read_position(path: Path) -> Position:
    """The position in a checkpoint file, from its header alone.

    A file that was cut off has none: those who read its tensors will not take it up either.
    """
    try:
        return msgspec.json.decode(read_metadata(path)["position"], type=Position)
    except (KeyError, msgspec.DecodeError) as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error}", path=str(path)) from error


def newest_position(directory: Path) -> Position | None:
    """The position of the newest checkpoint whose header can be read, if there is one."""
    for path in sorted(directory.glob(CHECKPOINT_PATTERN), reverse=True):
        try:
            return read_position(path)
        except StoreError:
            continue
    return None
