"""Read arrays of one .npz file: `x` and `y`, and for a test part `x_test` and `y_test`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from typing_extensions import override

from phalanx.data.arrays import as_samples
from phalanx.data.base import Array, PartName, Samples, Source
from phalanx.data.directory import stat_fingerprint
from phalanx.errors import DataError


class NpzSource(Source):
    """A .npz file, as `numpy.savez` writes it.

    Args:
        path: The file.
        input_key: Name of the array of inputs; the test part adds `_test`.
        target_key: Name of the array of labels or values.
    """

    def __init__(self, path: Path, *, input_key: str, target_key: str) -> None:
        self._path = path
        self._keys = (input_key, target_key)

    @property
    @override
    def name(self) -> str:
        return self._path.stem

    @property
    @override
    def location(self) -> str:
        return str(self._path)

    @override
    def fingerprint(self) -> str:
        return stat_fingerprint((self._path,), decoder=f"npz-2 {self._keys}")

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        try:
            # numpy leaves a file that it opened itself open when it proves to be damaged.
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                names = self._names(part, set(arrays.files))
                if names is None:
                    return
                inputs: Array = arrays[names[0]]
                targets: Array = arrays[names[1]]
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
            raise DataError(
                f"{self._path} is truncated, corrupt or not a .npz file of numbers ({error}); "
                "write it again with numpy.savez",
                path=self._path,
            ) from error
        yield as_samples(inputs, targets, origin=str(self._path))

    def _names(self, part: PartName, present: set[str]) -> tuple[str, str] | None:
        suffix = "" if part == "train" else "_test"
        names = (self._keys[0] + suffix, self._keys[1] + suffix)
        absent = [name for name in names if name not in present]
        if part == "test" and len(absent) == 2:
            return None
        if absent:
            raise DataError(
                f"{self._path} has no array '{absent[0]}' (it has: {', '.join(sorted(present))}); "
                "name the arrays with data.input_key and data.target_key",
                path=self._path,
            )
        return names
