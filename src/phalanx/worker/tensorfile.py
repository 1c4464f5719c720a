"""Named tensors as a stream of bytes in the safetensors format, and back.

The library's own `save` makes one string of everything first, which takes the time and the memory
of a copy, and holds up the other threads of the process meanwhile. Whole files on this machine are
read by the library; `parse_header` is for those of which only some bytes are fetched.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from phalanx.errors import StoreError

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
LENGTH_BYTES = 8
"""In front of the header: how long it is."""


class Sink(Protocol):
    """Whatever bytes can be written to."""

    def write(self, content: bytes | memoryview, /) -> object:
        """Take the next bytes."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a file, from its beginning, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    def part(self, bounds: tuple[int, int] | None) -> Place:
        """The place of some rows; a single number has none, and stays whole."""
        if bounds is None or not self.shape:
            return self
        first, last = (min(bound, self.shape[0]) for bound in bounds)
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        return Place(self.dtype, (last - first, *self.shape[1:]), self.start + first * row_bytes)


def write_tensors(
    sink: Sink, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write all bytes of a file; tensors are written from where they are."""
    # The format wants wide numbers first, so that all of them lie at multiples of their width.
    ordered = sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sink.write(struct.pack("<Q", len(text)) + text)
    for _, tensor in ordered:
        if tensor.nbytes:
            sink.write(bytes_of(tensor.contiguous()))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def header_length(first: bytes | bytearray, *, file_bytes: int) -> int:
    """How long the header is, by a file's first eight bytes."""
    (length,) = struct.unpack("<Q", first)
    if length > file_bytes - LENGTH_BYTES:
        raise StoreError("its header is damaged")
    return int(length)


def parse_header(
    text: bytes | bytearray, *, file_bytes: int
) -> tuple[dict[str, str], dict[str, Place]]:
    """Metadata and places of all tensors.

    Raises:
        StoreError: The header is damaged, or does not fit the length of the file.
    """
    try:
        header = json.loads(bytes(text))
        metadata = dict(header.pop("__metadata__", {}))
        begin, end = LENGTH_BYTES + len(text), 0
        places = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            place = Place(_NAMES[entry["dtype"]], tuple(entry["shape"]), begin + start)
            if stop - start != place.dtype.itemsize * math.prod(place.shape):
                raise ValueError(name)
            places[name], end = place, max(end, stop)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError("its header is damaged") from error
    if begin + end != file_bytes:
        raise StoreError(f"it has {file_bytes} bytes instead of {begin + end}")
    return metadata, places
