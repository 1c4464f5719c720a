"""Describe modalities: the named parts of one sample that come from different sensors.

A multi-modal sample travels as one packed row: the values of all modalities one after the other,
each in the order (channels, height, width). So files, batches and exchanges need no second form,
and a part of the row is one range of columns. Used by networks and data sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Modality:
    """One sensor's part of a sample."""

    name: str
    shape: tuple[int, int, int]
    """Channels, height, width."""

    @property
    def size(self) -> int:
        """Values per sample."""
        return math.prod(self.shape)


def columns_of(modalities: Sequence[Modality]) -> dict[str, slice]:
    """Return the columns of each modality in a packed row."""
    columns: dict[str, slice] = {}
    start = 0
    for one in modalities:
        columns[one.name] = slice(start, start + one.size)
        start += one.size
    return columns
