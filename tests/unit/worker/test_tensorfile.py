"""Files of tensors read back with the safetensors library, bit by bit."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from phalanx.errors import StoreError
from phalanx.worker.tensorfile import (
    LENGTH_BYTES,
    Place,
    bytes_of,
    header_length,
    parse_header,
    write_tensors,
)

TENSORS = {
    "flat": torch.randn(1001, generator=torch.Generator().manual_seed(1)),
    "strided": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
    "double": torch.tensor([1e-300, float("inf")], dtype=torch.float64),
    "half": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
    "counter": torch.tensor(7),
    "scalar": torch.tensor(0.25),
    "nothing": torch.zeros(0),
    "flags": torch.tensor([True, False, True]),
    "bytes": torch.tensor([1, 255], dtype=torch.uint8),
}


def test_everything_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    metadata = {"position": '{"epoch": 3}', "é": '\n"quotes"'}
    with path.open("wb") as file:
        write_tensors(file, TENSORS, metadata)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == metadata
        assert set(file.keys()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor), name


def test_values_lie_at_multiples_of_their_width(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        write_tensors(file, TENSORS, {})
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    for name, tensor in TENSORS.items():
        start, stop = header[name]["data_offsets"]
        assert start % tensor.element_size() == 0
        assert stop - start == tensor.nbytes


def test_header_and_places_are_found_without_the_library() -> None:
    stream = BytesIO()
    write_tensors(stream, TENSORS, {"version": "3"})
    raw = stream.getvalue()
    length = header_length(raw[:LENGTH_BYTES], file_bytes=len(raw))
    text = raw[LENGTH_BYTES : LENGTH_BYTES + length]
    metadata, places = parse_header(text, file_bytes=len(raw))
    assert metadata == {"version": "3"}
    assert places.keys() == TENSORS.keys()
    for name, place in places.items():
        tensor = TENSORS[name].contiguous()
        assert (place.dtype, place.shape) == (tensor.dtype, tuple(tensor.shape))
        assert raw[place.start : place.start + tensor.nbytes] == bytes(bytes_of(tensor))
    for wrong in (len(raw) - 1, len(raw) + 1):
        with pytest.raises(StoreError, match=f"it has {wrong} bytes instead of {len(raw)}"):
            parse_header(text, file_bytes=wrong)


def test_rows_have_places_of_their_own() -> None:
    place = Place(torch.float64, (10, 3), start=100)
    assert place.part(None) == place
    assert place.part((4, 6)) == Place(torch.float64, (2, 3), start=100 + 4 * 3 * 8)
    assert place.part((8, 99)).shape == (2, 3)
    assert Place(torch.int64, (), start=5).part((4, 6)) == Place(torch.int64, (), start=5)
