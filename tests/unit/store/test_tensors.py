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
from phalanx.store.tensors import TensorEntry, read_header, write_tensors
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter

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

VIEWS = {name: TorchAdapter().view(tensor) for name, tensor in TENSORS.items()}


class Raw:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)

    def read_into(self, target: memoryview, offset: int) -> None:
        target[:] = self._content[offset : offset + len(target)]


def test_everything_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    metadata = {"position": '{"epoch": 3}', "é": '\n"quotes"'}
    with path.open("wb") as file:
        write_tensors(file, VIEWS, metadata)
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
        write_tensors(file, VIEWS, {})
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    for name, tensor in TENSORS.items():
        start, stop = header[name]["data_offsets"]
        assert start % tensor.element_size() == 0
        assert stop - start == tensor.nbytes


def test_header_and_entries_are_found_without_the_library() -> None:
    stream = BytesIO()
    write_tensors(stream, VIEWS, {"version": "3"})
    raw = stream.getvalue()
    metadata, entries = read_header(Raw(raw))
    assert metadata == {"version": "3"}
    assert entries.keys() == VIEWS.keys()
    for name, entry in entries.items():
        view = VIEWS[name]
        assert (entry.dtype, entry.shape) == (view.dtype, view.shape)
        assert raw[entry.start : entry.start + entry.num_bytes] == bytes(view.memory)
    for wrong in (raw[:-1], raw + b"x"):
        match = f"it has {len(wrong)} bytes instead of {len(raw)}"
        with pytest.raises(StoreError, match=match):
            read_header(Raw(wrong))


def test_rows_have_entries_of_their_own() -> None:
    entry = TensorEntry("F64", (10, 3), start=100)
    assert entry.rows(None) == entry
    assert entry.rows((4, 6)) == TensorEntry("F64", (2, 3), start=100 + 4 * 3 * 8)
    assert entry.rows((8, 99)).shape == (2, 3)
    assert TensorEntry("I64", (), start=5).rows((4, 6)) == TensorEntry("I64", (), start=5)
