"""Define `distribution.json` of a run directory: the partition of samples over workers.

Written once by the chief, before the first step. Row numbers are those of the decoded training
samples, so they mean the same on every machine that holds the same data.
"""

from __future__ import annotations

import msgspec


class WorkerShare(msgspec.Struct, kw_only=True):
    """The samples of one worker."""

    worker: int
    num_samples: int
    samples_per_step: int
    samples_per_epoch: int
    """Other than `num_samples` where an epoch drops samples or begins again."""
    class_counts: list[int] | None = None
    skew: float | None = None
    """Total-variation distance between its mix of classes and that of all: 0 same, 1 disjoint."""
    modalities: list[str] | None = None
    """Modalities that it has; null: all."""
    rows: list[int] = []
    """Sorted."""


class Distribution(msgspec.Struct, kw_only=True):
    """The whole partition."""

    scheme: str
    settings: dict[str, object]
    seed: int
    data: str
    fingerprint: str
    num_samples: int
    """Distinct samples that were divided."""
    num_steps: int
    """Steps of an epoch."""
    samples_per_epoch: int
    skew: float | None
    """Mean over workers."""
    size_ratio: float
    """Largest part over smallest."""
    class_names: list[str] = []
    workers: list[WorkerShare]
