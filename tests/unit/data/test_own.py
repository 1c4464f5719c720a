"""Data that a user's function returns, in every form that is read, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset

from phalanx.data.dataset import Dataset, open_dataset
from phalanx.data.fields import unpack
from phalanx.errors import PhalanxError
from phalanx.spec.data import DataSpec

X = torch.arange(40.0).view(20, 2)
Y = torch.arange(20) % 3


class Items(TorchDataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((X[i], int(Y[i])) for i in range(20))


class Table:
    """As Hugging Face's data sets look from outside."""

    column_names = ("x", "label")
    _fingerprint = "table-1"

    def __len__(self) -> int:
        return 20

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        return {"x": X[rows].tolist(), "label": Y[rows].tolist()}


def arrays() -> object:
    return X.numpy(), Y.numpy()


def tensors() -> object:
    return TensorDataset(X, Y)


def items() -> object:
    return Items()


def samples() -> object:
    return [(X[i], Y[i]) for i in range(20)]


def stream() -> object:
    return Stream()


def loader() -> object:
    return DataLoader(Items(), batch_size=8, shuffle=True)


def stream_loader() -> object:
    return DataLoader(Stream(), batch_size=8)


def table() -> object:
    return Table()


def columns() -> object:
    return {"x": X.numpy(), "y": Y.numpy()}


def generate(count: int = 20) -> Iterator[object]:
    for index in range(count):
        yield {"x": X[index], "target": Y[index]}


def parts() -> object:
    return {"train": TensorDataset(X, Y), "val": TensorDataset(X[:4], Y[:4]), "test": Items()}


def three() -> object:
    return Items(), TensorDataset(X[:4], Y[:4]), TensorDataset(X[:6], Y[:6])


def two_inputs() -> object:
    return [(X[i], torch.tensor([i]), float(i)) for i in range(20)]


def named() -> object:
    return [{"ids": torch.tensor([i, 1]), "mask": X[i] > 9, "labels": i % 2} for i in range(20)]


def images() -> object:
    return [(torch.full((3, 4, 4), float(i)), i % 2) for i in range(20)]


def weighted() -> object:
    return DataLoader(Items(), sampler=WeightedRandomSampler([1.0] * 20, 20))


def uneven() -> object:
    return [(torch.zeros(i + 1), 0) for i in range(4)]


def targetless() -> object:
    return [{"a": 1, "b": 2}]


def bare() -> object:
    return [torch.zeros(2), torch.zeros(2)]


def two_parts() -> object:
    return Items(), Items()


def no_train() -> object:
    return {"test": Items()}


def number() -> object:
    return 3


def broken() -> object:
    raise OSError("no such disk")


def breaks_off() -> Iterator[object]:
    yield X[0], Y[0]
    raise ValueError("half way")


def opened(name: str, folder: Path, **fields: Any) -> Dataset:
    spec = DataSpec.model_validate({"name": f"{__name__}:{name}"} | fields)
    return open_dataset(spec, data_root=folder, cache_root=folder, whole_numbers=True)


@pytest.mark.parametrize(
    "name",
    [
        "arrays",
        "tensors",
        "items",
        "samples",
        "stream",
        "loader",
        "stream_loader",
        "table",
        "columns",
        "generate",
    ],
)
def test_every_form_gives_the_same_samples_as_they_are(name: str, tmp_path: Path) -> None:
    dataset = opened(name, tmp_path)
    stored = dataset.train.inputs
    assert np.array_equal(stored, X.numpy())
    assert np.array_equal(dataset.train.targets, Y.numpy())
    assert dataset.train.normalizer(stored, dataset.train.normalizer.buffer(20)).tolist() == (
        X.tolist()
    )
    assert dataset.num_classes == 3
    assert len(dataset.train.file_sizes) == 1


@pytest.mark.parametrize("name", ["parts", "three"])
def test_parts_are_taken_as_they_are_given(name: str, tmp_path: Path) -> None:
    dataset = opened(name, tmp_path)
    sizes = [one.num_samples for one in (dataset.train, dataset.validation, dataset.test)]
    assert sizes == [20, 4, {"parts": 20, "three": 6}[name]]


def test_inputs_without_names_keep_their_order_and_types(tmp_path: Path) -> None:
    dataset = opened("two_inputs", tmp_path)
    found = unpack(dataset.train.inputs, dataset.fields)
    assert np.array_equal(found["0"], X.numpy())
    assert found["1"].dtype == np.int64
    assert dataset.train.targets.dtype == np.float32


def test_named_inputs_keep_their_names(tmp_path: Path) -> None:
    first = opened("named", tmp_path)
    again = opened("named", tmp_path)  # from the cache, where nothing is decoded
    assert again.fields == first.fields
    found = unpack(again.train.inputs, again.fields)
    assert list(found) == ["ids", "mask"]
    assert np.array_equal(found["mask"], (X > 9).numpy())


def test_images_of_torch_have_their_channels_first(tmp_path: Path) -> None:
    assert opened("images", tmp_path).input_shape == (4, 4, 3)


def test_a_stream_is_read_as_far_as_the_limit(tmp_path: Path) -> None:
    dataset = opened("generate", tmp_path, limit=10, args={"count": 20})
    assert len(dataset.train.targets) == 10


def test_other_arguments_are_other_data(tmp_path: Path) -> None:
    few, many = (opened("generate", tmp_path, args={"count": count}) for count in (5, 20))
    assert (len(few.train.targets), len(many.train.targets)) == (5, 20)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weighted", "draws by WeightedRandomSampler"),
        ("uneven", r"shapes \(1,\) and \(2,\); pad or cut"),
        ("targetless", "samples have a, b, and none of them is the target"),
        ("two_parts", "returned 2 parts"),
        ("no_train", "no part 'train'"),
        ("number", "returned int; it must return"),
        ("broken", "raised OSError: no such disk"),
        ("breaks_off", "reading the train part raised ValueError: half way"),
    ],
)
def test_what_cannot_be_read_is_said(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PhalanxError, match=words):
        opened(name, tmp_path)
