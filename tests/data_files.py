"""Tiny data files for tests, in the formats that Phalanx reads."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def images(count: int, shape: tuple[int, ...] = (4, 4, 3), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(
    folder: Path, num_train: int = 40, num_test: int = 10, *, packed: bool = True, seed: int = 0
) -> dict[str, np.ndarray]:
    """The four IDX files; returns their arrays by stem."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "train-images-idx3-ubyte": images(num_train, (6, 6), seed),
        "train-labels-idx1-ubyte": np.arange(num_train, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": images(num_test, (6, 6), seed + 1),
        "t10k-labels-idx1-ubyte": np.arange(num_test, dtype=np.uint8) % 10,
    }
    for stem, array in arrays.items():
        data = idx_bytes(array)
        path = folder / (f"{stem}.gz" if packed else stem)
        path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return arrays


def old_pickle(rows: np.ndarray, labels: Sequence[int]) -> bytes:
    """A batch as Python 2 and an old numpy pickled it, which is how CIFAR-10 is published."""
    assert len(labels) < 256
    data = rows.tobytes()
    minus_one = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + minus_one * 2 + b"K\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"M" + struct.pack("<H", rows.shape[0])
        + b"M" + struct.pack("<H", rows.shape[1])
        + b"\x86" + dtype + b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"
    )  # fmt: skip
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + numbers + b"eu."


def new_pickle(rows: np.ndarray, labels: Sequence[int]) -> bytes:
    return pickle.dumps({"data": rows, "labels": list(labels)}, protocol=2)


def cifar_rows(count: int, seed: int) -> np.ndarray:
    return images(count, (3 * 32 * 32,), seed)


CIFAR_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def write_cifar(folder: Path, per_batch: int = 4, *, as_tar: bool, old: bool = True) -> None:
    """Six pickled batches, in a folder or a tar archive."""
    make = old_pickle if old else new_pickle
    contents = {
        name: make(cifar_rows(per_batch, seed), [(seed + i) % 10 for i in range(per_batch)])
        for seed, name in enumerate(CIFAR_NAMES)
    }
    folder.mkdir(parents=True, exist_ok=True)
    if not as_tar:
        place = folder / "cifar-10-batches-py"
        place.mkdir()
        for name, data in contents.items():
            (place / name).write_bytes(data)
        return
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        # In another order than the batches', as in the published archive.
        for name in reversed(contents):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(contents[name])
            archive.addfile(member, io.BytesIO(contents[name]))


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze()).save(buffer, kind)
    return buffer.getvalue()


def write_image_parquet(
    path: Path,
    pixels: np.ndarray,
    labels: Sequence[int],
    *,
    as_struct: bool = False,
    columns: tuple[str, str] = ("image", "label"),
    row_group_size: int | None = None,
) -> None:
    data: list[object] = [encoded(image) for image in pixels]
    if as_struct:
        data = [{"bytes": one, "path": None} for one in data]
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({columns[0]: data, columns[1]: pa.array(labels, pa.int64())})
    pq.write_table(table, path, row_group_size=row_group_size, write_page_checksum=True)
