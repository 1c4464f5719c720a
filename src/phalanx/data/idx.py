"""Read IDX files, the format of MNIST, Fashion-MNIST and KMNIST; packed with gzip or plain.

`catalogue` and `directory` decide which files.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from phalanx.data.base import FileSource, PartName, Samples
from phalanx.data.directory import Located, refetch_hint
from phalanx.errors import DataError

_UBYTE = 0x08  # the only element type that these data sets use
_STEMS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def unpacked_bytes(path: Path, *, hint: str) -> bytes:
    """Return the contents of a file, gunzipped if packed; a damaged archive is a `DataError`."""
    raw = path.read_bytes()
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}); {hint}", path=path) from error


def idx_header(data: bytes, path: Path, *, hint: str) -> tuple[int, ...]:
    """Return the shape that an IDX file declares; a wrong magic number is a `DataError`."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UBYTE or data[3] not in (1, 3):
        raise DataError(
            f"{path} is not an IDX file of bytes (its first four are '{data[:4].hex()}'); {hint}",
            path=path,
        )
    num_axes = data[3]
    if len(data) < 4 + 4 * num_axes:
        raise DataError(f"{path} is truncated within its header; {hint}", path=path)
    return struct.unpack(f">{num_axes}I", data[4 : 4 + 4 * num_axes])


def read_idx(path: Path, *, hint: str) -> npt.NDArray[np.uint8]:
    """Read one IDX file, packed or not; `hint` ends every message about a damaged one."""
    data = unpacked_bytes(path, hint=hint)
    shape = idx_header(data, path, hint=hint)
    start = 4 + 4 * len(shape)
    expected = int(np.prod(shape, dtype=np.int64))
    if len(data) - start != expected:
        raise DataError(
            f"{path} declares {expected:,} bytes of data and holds {len(data) - start:,}: "
            f"it is truncated or corrupt; {hint}",
            path=path,
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


class IdxSource(FileSource):
    """Four IDX files: images and labels, for training and for testing."""

    num_classes = 10

    def __init__(self, located: Located) -> None:
        super().__init__(located.name, located.folder, located.files, decoder="idx-1")
        self._hint = refetch_hint(located.name)

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        image_path, label_path = (self._path(stem) for stem in _STEMS[part])
        images = read_idx(image_path, hint=self._hint)
        labels = read_idx(label_path, hint=self._hint)
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"{image_path} holds an array of shape {images.shape} and {label_path.name} one of "
                f"shape {labels.shape}: they do not belong together; {self._hint}",
                path=image_path,
            )
        yield Samples(inputs=images[..., None], targets=labels.astype(np.int64))

    def _path(self, stem: str) -> Path:
        return next(p for p in self._files if p.name in (stem, f"{stem}.gz"))
