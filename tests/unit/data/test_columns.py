"""Loading some columns of each sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phalanx.data.dataset import only_columns
from phalanx.data.pipeline import Dataset, open_dataset, train_batches
from phalanx.errors import SpecError
from phalanx.spec.data import DataSpec


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    random = np.random.default_rng(1)
    inputs = random.normal(3.0, 2.0, size=(60, 10)).astype(np.float32)
    np.savez(tmp_path / "made.npz", x=inputs, y=np.arange(60) % 3)
    return open_dataset(
        DataSpec(name=str(tmp_path / "made.npz")), data_root=tmp_path, cache_root=tmp_path
    )


def batches(dataset: Dataset) -> list[np.ndarray]:
    with train_batches(
        dataset,
        spec=DataSpec(name="digits"),
        seed=1,
        epoch=0,
        global_batch=16,
        rank=0,
        num_workers=1,
    ) as stream:
        return [batch.inputs.copy() for batch in stream]


def test_the_columns_are_those_of_whole_samples(dataset: Dataset) -> None:
    some = only_columns(dataset, 3, 7)
    assert some.input_shape == (4,)
    for own, whole in zip(batches(some), batches(dataset), strict=True):
        assert own.flags.c_contiguous
        np.testing.assert_array_equal(own, whole[:, 3:7])


def test_columns_that_are_not_there_are_refused(dataset: Dataset) -> None:
    with pytest.raises(SpecError, match=r"columns 3 to 11 of flat samples.*shape \(10,\)"):
        only_columns(dataset, 3, 11)
