"""Read arrays of one .npz file; names of the test part end in `_test`.

Samples are one array of inputs, or an array for each of several sensors, packed row by row:
(samples, channels, height, width), or (samples, height, width) of one channel, in any numeric type;
they need not have one height and width.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from typing_extensions import override

from phalanx.data.arrays import as_samples
from phalanx.data.base import Array, FileSource, PartName, Samples
from phalanx.errors import DataError
from phalanx.spec.modality import Modality


class NpzSource(FileSource):
    """A .npz file, as `numpy.savez` writes it; names of the test part end in `_test`."""

    def __init__(self, path: Path, *, input_key: str, target_key: str) -> None:
        self._path = path
        self._keys = (input_key, target_key)
        super().__init__(path.stem, path, (path,), decoder=f"npz-2 {self._keys}")

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
            # numpy advises to load what it cannot read as a pickle, which runs what is in it.
            reason = "" if "pickle" in str(error) else f" ({error})"
            raise DataError(
                f"{self._path} is truncated, corrupt or not a .npz file of numbers{reason}; "
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


class NpzModalitiesSource(FileSource):
    """Arrays of several sensors as one data set, packed in the order of their names."""

    def __init__(self, path: Path, *, names: Sequence[str], target_key: str) -> None:
        self._path = path
        self._names = tuple(names)
        self._target_key = target_key
        decoder = f"npz-modalities-1 {(*self._names, target_key)}"
        super().__init__(path.stem, path, (path,), decoder=decoder)

    @cached_property
    def modalities(self) -> tuple[Modality, ...]:  # type: ignore[override]
        """Read from the headers of the arrays, not from the arrays."""
        return tuple(self._modality(name) for name in self._names)

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        suffix = "" if part == "train" else "_test"
        with self._open() as archive:
            present = {name.removesuffix(".npy") for name in archive.namelist()}
        if part == "test" and f"{self._target_key}_test" not in present:
            return
        with np.load(self._path, allow_pickle=False) as arrays:
            parts = [self._rows(arrays, one, suffix, present) for one in self.modalities]
            targets: Array = self._array(arrays, self._target_key + suffix, present)
        if len({len(rows) for rows in parts}) > 1:
            raise DataError(
                f"{self._path}: the sensors have {', '.join(str(len(rows)) for rows in parts)} "
                "samples; each needs one row per sample",
                path=self._path,
            )
        yield as_samples(np.concatenate(parts, axis=1), targets, origin=str(self._path))

    def _rows(
        self, arrays: np.lib.npyio.NpzFile, modality: Modality, suffix: str, present: set[str]
    ) -> Array:
        values: Array = self._array(arrays, modality.name + suffix, present)
        rows = values.reshape(len(values), -1)
        if rows.shape[1] != modality.size:
            raise DataError(
                f"{self._path}: '{modality.name}{suffix}' has shape {values.shape}, but the "
                f"training samples are {modality.shape}",
                path=self._path,
            )
        return np.asarray(rows, dtype=np.float32)

    def _array(self, arrays: np.lib.npyio.NpzFile, name: str, present: set[str]) -> Array:
        if name not in present:
            raise self._absent(name, present)
        found: Array = arrays[name]
        return found

    def _absent(self, name: str, present: Iterable[str]) -> DataError:
        return DataError(
            f"{self._path} has no array '{name}' (it has: {', '.join(sorted(present))}); name "
            "the arrays with data.modalities and data.target_key",
            path=self._path,
        )

    def _modality(self, name: str) -> Modality:
        with self._open() as archive:
            present = [one.removesuffix(".npy") for one in archive.namelist()]
            if name not in present:
                raise self._absent(name, present)
            with archive.open(f"{name}.npy") as file:
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape = read(file)[0]
        if len(shape) not in (3, 4):
            raise DataError(
                f"{self._path}: '{name}' has shape {shape}; a sensor's array is (samples, "
                "channels, height, width) or (samples, height, width)",
                path=self._path,
            )
        channels, height, width = shape[1:] if len(shape) == 4 else (1, *shape[1:])
        return Modality(name, (channels, height, width))

    def _open(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self._path)
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(
                f"{self._path} is truncated, corrupt or not a .npz file ({error}); write it again "
                "with numpy.savez",
                path=self._path,
            ) from error
