"""Write and read named tensors of any framework in the safetensors format.

The library's `save` first makes one string of everything, which costs the time and the memory of a
copy and blocks the other threads of the process. Here tensors are written from, and read into, the
memory that holds them; what is not requested is never read.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from phalanx.errors import StoreError

TensorT = TypeVar("TensorT")
EVERYTHING = ("",)
"""Prefixes that every name has one of."""

_ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
# The length of the header, little endian, comes before the header.
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorBundle(Generic[TensorT]):
    """Named tensors with text metadata: the content of one file."""

    metadata: dict[str, str]
    tensors: dict[str, TensorT]


@dataclass(frozen=True)
class TensorView:
    """The memory of one tensor, in row-major order.

    Attributes:
        dtype: As the format calls it.
        shape: Empty for a scalar.
        memory: Its bytes, not a copy if the tensor is contiguous.
    """

    dtype: str
    shape: tuple[int, ...]
    memory: memoryview


class TensorAdapter(Protocol[TensorT]):
    """Give the store access to the memory of one framework's tensors."""

    def view(self, tensor: TensorT) -> TensorView:
        """View the memory of a tensor; raises `KeyError` if the format lacks its dtype."""

    def empty(self, dtype: str, shape: tuple[int, ...]) -> TensorT:
        """Allocate a contiguous tensor; raises `StoreError` if the framework lacks the dtype."""


class ByteSink(Protocol):
    """Anything that bytes can be written to in order."""

    def write(self, content: bytes | memoryview, /) -> object:
        """Append bytes; they must not change before the file is complete."""


class ByteSource(Protocol):
    """A file of known size that can be read at any offset."""

    size: int

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill memory with the bytes from `offset` on; raises `StoreError` if there are fewer."""


@dataclass(frozen=True)
class TensorEntry:
    """Type, shape and first byte of a tensor within a file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        """Size of the tensor."""
        return _ITEM_BYTES[self.dtype] * math.prod(self.shape)

    def rows(self, bounds: tuple[int, int] | None) -> TensorEntry:
        """Narrow the entry to some rows; a scalar has none and stays whole."""
        if bounds is None or not self.shape:
            return self
        first, last = (min(bound, self.shape[0]) for bound in bounds)
        row_bytes = _ITEM_BYTES[self.dtype] * math.prod(self.shape[1:])
        return replace(
            self, shape=(last - first, *self.shape[1:]), start=self.start + first * row_bytes
        )


def write_tensors(
    sink: ByteSink, tensors: Mapping[str, TensorView], metadata: Mapping[str, str]
) -> None:
    """Write a whole file; the same tensors and metadata always give the same bytes."""
    # Wide types first, so that every tensor starts at a multiple of its item size.
    ordered = sorted(tensors.items(), key=lambda one: (-_ITEM_BYTES[one[1].dtype], one[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, view in ordered:
        start, end = end, end + view.memory.nbytes
        header[name] = {
            "dtype": view.dtype,
            "shape": list(view.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sink.write(_LENGTH.pack(len(text)) + text)
    for _, view in ordered:
        if view.memory.nbytes:
            sink.write(view.memory)


def read_tensors(
    source: ByteSource,
    adapter: TensorAdapter[TensorT],
    *,
    only: Sequence[str] = EVERYTHING,
    part: tuple[int, int] | None = None,
) -> TensorBundle[TensorT]:
    """Read a file, or some rows of some of its tensors.

    Raises:
        StoreError: The header is damaged, or the file is shorter or longer than the header says.
    """
    metadata, entries = read_header(source)
    tensors = {
        name: _read_tensor(source, adapter, entry.rows(part))
        for name, entry in entries.items()
        if name.startswith(tuple(only))
    }
    return TensorBundle(metadata, tensors)


def read_header(source: ByteSource) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    """Read the metadata and the entries of all tensors.

    Raises:
        StoreError: The header is damaged, or does not fit the size of the file.
    """
    if source.size < _LENGTH.size:
        raise StoreError("its header is damaged")
    (length,) = _LENGTH.unpack(_read(source, 0, _LENGTH.size))
    # Checked before anything is allocated: noise may claim a header of exabytes.
    if length > source.size - _LENGTH.size:
        raise StoreError("its header is damaged")
    begin, end = _LENGTH.size + length, 0
    try:
        header = json.loads(_read(source, _LENGTH.size, length))
        metadata = dict(header.pop("__metadata__", {}))
        entries = {}
        for name, described in header.items():
            start, stop = described["data_offsets"]
            entry = TensorEntry(described["dtype"], tuple(described["shape"]), begin + start)
            if stop - start != entry.num_bytes:
                raise ValueError(name)
            entries[name], end = entry, max(end, stop)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError("its header is damaged") from error
    if begin + end != source.size:
        raise StoreError(f"it has {source.size} bytes instead of {begin + end}")
    return metadata, entries


def _read(source: ByteSource, offset: int, length: int) -> bytearray:
    content = bytearray(length)
    source.read_into(memoryview(content), offset)
    return content


def _read_tensor(
    source: ByteSource, adapter: TensorAdapter[TensorT], entry: TensorEntry
) -> TensorT:
    tensor = adapter.empty(entry.dtype, entry.shape)
    if entry.num_bytes:
        source.read_into(adapter.view(tensor).memory, entry.start)
    return tensor
