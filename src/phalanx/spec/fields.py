"""Describe the named inputs of one sample, for networks that take several.

A sample with several inputs travels as one row of bytes, each input in its own type at its own
place. So caches, shards and tickets need no second form. Packed by `data.fields`, unpacked there
and by `engine.inputs`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

FieldType = Literal["float32", "int64", "uint8", "bool"]
_BYTES: dict[str, int] = {"float32": 4, "int64": 8, "uint8": 1, "bool": 1}
_ALIGNMENT = 8


class InputField(msgspec.Struct, frozen=True):
    """One input in a packed row."""

    name: str
    dtype: FieldType
    shape: tuple[int, ...]
    offset: int
    """First byte; a multiple of 8."""

    @property
    def num_bytes(self) -> int:
        """Bytes of one sample, without padding."""
        return _BYTES[self.dtype] * math.prod(self.shape)

    @property
    def end(self) -> int:
        """First byte behind it that another input may take."""
        return -(-(self.offset + self.num_bytes) // _ALIGNMENT) * _ALIGNMENT

    @property
    def is_positional(self) -> bool:
        """Whether networks take it by its place; otherwise by its name."""
        return self.name.isdigit()
