"""Named tensors in one file, in the safetensors format, written without a second copy in memory.

The library's own `save` makes one string of everything first, which takes the time and the memory
of a copy, and holds up the other threads of the process meanwhile. Reading is left to the library.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch

from phalanx.store.atomic import replace_atomically

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


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> int:
    """Replace a file in one stroke, durably; returns its size in bytes."""
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

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            if tensor.nbytes:
                file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    return replace_atomically(path, write)
