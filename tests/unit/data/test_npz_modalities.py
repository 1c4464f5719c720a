"""Samples of several sensors from one file of one's own."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.data.dataset import Dataset, open_dataset
from phalanx.errors import DataError
from phalanx.spec.data import DataSpec
from phalanx.spec.modality import columns_of

NAMES = ("hyperspectral", "lidar")


def arrays(count: int = 20) -> dict[str, np.ndarray]:
    chance = np.random.Generator(np.random.Philox(3))
    return {
        "hyperspectral": chance.random((count, 4, 3, 3)),
        "lidar": chance.random((count, 6, 6)),
        "y": np.arange(count) % 3,
    }


def opened(tmp_path: Path, stored: dict[str, np.ndarray], **settings: object) -> Dataset:
    np.savez(tmp_path / "own.npz", allow_pickle=False, **stored)
    spec = DataSpec.model_validate(
        {"name": str(tmp_path / "own.npz"), "modalities": list(NAMES), **settings}
    )
    return open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")


def test_each_sensor_is_a_range_of_columns(tmp_path: Path) -> None:
    stored = arrays()
    dataset = opened(tmp_path, stored)
    assert [(one.name, one.shape) for one in dataset.modalities] == [
        ("hyperspectral", (4, 3, 3)),
        ("lidar", (1, 6, 6)),
    ]
    columns = columns_of(dataset.modalities)
    for name in NAMES:
        packed = dataset.train.inputs[:, columns[name]]
        assert np.array_equal(packed, stored[name].reshape(20, -1).astype(np.float32))
    assert dataset.num_classes == 3


def test_a_test_part_is_read_too(tmp_path: Path) -> None:
    tested = {f"{name}_test": values[:5] for name, values in arrays().items()}
    dataset = opened(tmp_path, arrays() | tested)
    assert dataset.test.num_samples == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lidar": None}, "has no array 'lidar'"),
        ({"y": None}, "has no array 'y'"),
        ({"lidar": np.zeros((20, 6))}, "a sensor's array is"),
        ({"lidar": np.zeros((19, 6, 6))}, "20, 19 samples"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, np.ndarray | None], message: str
) -> None:
    stored = {k: v for k, v in (arrays() | changed).items() if v is not None}
    with pytest.raises(DataError, match=message):
        opened(tmp_path, stored)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(b"no zip")
    spec = DataSpec(name=str(tmp_path / "own.npz"), modalities=NAMES)
    with pytest.raises(DataError, match="truncated, corrupt"):
        open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")
    with pytest.raises(ValueError, match=r"names arrays of a \.npz file"):
        DataSpec(name="digits", modalities=NAMES)
