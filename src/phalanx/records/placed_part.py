"""Describe a part of a split network as records name it: measured costs and workers."""

from __future__ import annotations

import msgspec


class PlacedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a split network: its measured costs, and its workers."""

    name: str
    workers: list[int]
    forward_s: float
    """For all rows of a batch, on the first of its workers."""
    backward_s: float
    chief_forward_s: float
    """The same on the chief, which measured all parts."""
    chief_backward_s: float
    out_bytes: int
    """For one sample, as it travels."""
    parameters: int
    reads: list[str]
    state_bytes: int
    sample_bytes: int
    needs_gradient: bool
