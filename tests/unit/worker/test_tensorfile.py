"""Files of tensors read back with the safetensors library, bit by bit."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from phalanx.errors import StoreError
from phalanx.worker.tensorfile import write_tensors

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
    size = write_tensors(path, TENSORS, metadata)
    assert size == path.stat().st_size
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == metadata
        assert set(file.keys()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor), name


def test_values_lie_at_multiples_of_their_width(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, {})
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    for name, tensor in TENSORS.items():
        start, stop = header[name]["data_offsets"]
        assert start % tensor.element_size() == 0
        assert stop - start == tensor.nbytes


def test_the_old_file_stays_if_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        write_tensors(tmp_path / "nowhere" / "a.safetensors", TENSORS, {})
    assert list(tmp_path.iterdir()) == []
