"""CHECKPOINTS · the state of a run as named tensors, its files, and writing them in background."""

from phalanx.worker.checkpoint.checkpoints import NEWEST, Checkpoints, pinned, unpinned

__all__ = ["NEWEST", "Checkpoints", "pinned", "unpinned"]
