"""What every checkpoint store promises, local or remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.errors import StoreError
from phalanx.store.base import CheckpointStore
from phalanx.store.local import LocalStore
from phalanx.store.messages import CHUNK_BYTES, WINDOW
from phalanx.store.numpy_tensors import NumpyAdapter
from phalanx.store.remote import RemoteStore
from phalanx.store.tensors import TensorAdapter, TensorT
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter, TorchStore
from support.stores import serve_store

NAME = "checkpoints/samples-000000000064.safetensors"
METADATA = {"position": '{"epoch": 3}', "é": '\n"quotes"'}


Opener = Callable[[TensorAdapter[TensorT]], CheckpointStore[TensorT]]


@pytest.fixture(params=["local", "remote"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener[Any]]:
    with serve_store(tmp_path) as served:
        if request.param == "remote":
            yield lambda adapter: RemoteStore(served.client(), adapter)
        else:
            yield lambda adapter: LocalStore(tmp_path, adapter)


@pytest.fixture
def store(open_store: Opener[torch.Tensor]) -> TorchStore:
    return open_store(TorchAdapter())


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Compares where == would not: NaN and minus zero."""
    return bytes(TorchAdapter().view(tensor).memory)


def tensors() -> dict[str, torch.Tensor]:
    """Several windows of chunks, and everything that is awkward."""
    count = (WINDOW + 3) * CHUNK_BYTES // 4 + 17
    return {
        "replica.parameters": torch.randn(count, generator=torch.Generator().manual_seed(1)),
        "replica.optimizer/momentum": torch.arange(count, dtype=torch.float32),
        "replica.optimizer/step": torch.tensor(7.0),
        "strided": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
        "double": torch.tensor([1e-300, float("nan"), -0.0], dtype=torch.float64),
        "half": torch.tensor([[1.5, -2.0], [0.0, 3.0]], dtype=torch.bfloat16),
        "counter": torch.tensor(7),
        "nothing": torch.zeros(0),
        "flags": torch.tensor([True, False, True]),
    }


def test_everything_reads_back_bit_by_bit(store: TorchStore) -> None:
    given = tensors()
    size = store.save(NAME, given, METADATA)
    found = store.load(NAME)
    assert size > sum(one.nbytes for one in given.values())
    assert found.metadata == METADATA
    assert found.tensors.keys() == given.keys()
    for name, tensor in given.items():
        assert (found.tensors[name].dtype, found.tensors[name].shape) == (
            tensor.dtype,
            tensor.shape,
        )
        assert bytes_of(found.tensors[name]) == bytes_of(tensor)


def test_both_write_the_same_bytes(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    (local / "checkpoints").mkdir(parents=True)
    remote.mkdir()
    LocalStore(local, TorchAdapter()).save(NAME, tensors(), METADATA)
    with serve_store(remote) as served:
        RemoteStore(served.client(), TorchAdapter()).save(NAME, tensors(), METADATA)
    assert (local / NAME).read_bytes() == (remote / NAME).read_bytes()


def test_only_some_rows_of_some_tensors_are_read(store: TorchStore) -> None:
    given = tensors()
    store.save(NAME, given, METADATA)
    begin, end = CHUNK_BYTES // 4 - 5, 3 * CHUNK_BYTES // 4 + 11
    found = store.load(NAME, only=["replica.optimizer/", "half"], part=(begin, end)).tensors
    assert found.keys() == {"replica.optimizer/momentum", "replica.optimizer/step", "half"}
    assert torch.equal(
        found["replica.optimizer/momentum"], given["replica.optimizer/momentum"][begin:end]
    )
    assert found["replica.optimizer/step"].item() == 7.0
    assert found["half"].shape == (0, 2)
    [row] = store.load(NAME, only=["half"], part=(1, 2)).tensors.values()
    assert torch.equal(row, given["half"][1:2])


def test_names_links_and_removal(store: TorchStore) -> None:
    assert store.names("checkpoints") == []
    one, two, best = (f"checkpoints/{name}.safetensors" for name in ("one", "two", "best"))
    store.save(two, {"a": torch.ones(3)}, {})
    store.save(one, {"a": torch.zeros(3)}, {})
    store.save("servers/server-0.safetensors", {"a": torch.zeros(3)}, {})
    assert store.names("checkpoints") == [one, two]
    store.keep_as(one, best)
    store.keep_as(two, best)
    store.drop([two, "checkpoints/never.safetensors"])
    store.drop([])
    assert store.names("checkpoints") == [best, one]
    assert store.load(best).tensors["a"].tolist() == [1.0, 1.0, 1.0]
    assert (store.has(best), store.has(two), store.is_coming(one)) == (True, False, False)


def test_what_is_not_there_is_named(store: TorchStore) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*checkpoints/gone\.safetensors"):
        store.load("checkpoints/gone.safetensors")
    with pytest.raises(StoreError, match=r"cannot write .*other\.safetensors"):
        store.keep_as("checkpoints/gone.safetensors", "checkpoints/other.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data + b"more",
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b'"dtype":"F32"', b'"dtype":"F99"'),
        lambda data: data.replace(b'"data_offsets"', b'"data_0ffsets"'),
    ],
    ids=["empty", "cut", "long", "noise", "dtype", "header"],
)
def test_a_damaged_file_is_refused(store: TorchStore, tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    store.save(NAME, tensors(), METADATA)
    path = tmp_path / NAME
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"cannot read .*samples-000000000064\.safetensors"):
        store.load(NAME)


def test_a_writer_that_breaks_off_leaves_the_old_file(store: TorchStore, tmp_path: Path) -> None:
    store.save(NAME, {"a": torch.ones(3)}, {})
    strange = {"a": torch.zeros(CHUNK_BYTES), "b": torch.zeros(3, dtype=torch.complex64)}
    with pytest.raises(KeyError):
        store.save(NAME, strange, {})
    assert store.load(NAME).tensors["a"].tolist() == [1.0, 1.0, 1.0]


def test_what_one_framework_saved_another_loads(open_store: Opener[Any]) -> None:
    arrays = {
        "kernel": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "rate": np.float32(0.25).reshape(()),
        "nothing": np.zeros((0, 3), dtype=np.float64),
        "flags": np.array([True, False]),
    }
    open_store(NumpyAdapter()).save(NAME, arrays, METADATA)
    found = open_store(TorchAdapter()).load(NAME)
    assert found.metadata == METADATA
    assert found.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = found.tensors[name]
        assert tensor.shape == array.shape
        assert tensor.numpy().dtype == array.dtype
        assert np.array_equal(tensor.numpy(), array)
    open_store(TorchAdapter()).save(NAME, found.tensors, METADATA)
    again = open_store(NumpyAdapter()).load(NAME, only=["kernel"], part=(1, 3)).tensors
    assert again.keys() == {"kernel"}
    assert np.array_equal(again["kernel"], arrays["kernel"][1:3])


def test_numbers_that_a_framework_lacks_are_refused(open_store: Opener[Any]) -> None:
    open_store(TorchAdapter()).save(NAME, {"half": torch.ones(2, dtype=torch.bfloat16)}, {})
    with pytest.raises(StoreError, match=r"cannot read .*: NumPy has no numbers of type BF16"):
        open_store(NumpyAdapter()).load(NAME)
