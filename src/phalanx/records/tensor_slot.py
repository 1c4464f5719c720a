"""Define the place of a named tensor in the flat buffers of checkpoints."""

from __future__ import annotations

import msgspec


class TensorSlot(msgspec.Struct, frozen=True):
    """Place of one named tensor in a flat buffer."""

    name: str
    shape: tuple[int, ...]
    start: int
    channels_last: bool = False
    """A convolution kernel that lies in memory as (out, height, width, in)."""
