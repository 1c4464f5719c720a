"""Write a decoded data set: the arrays of each part, chunk by chunk, and their description.

Called by `cache` only, which handles names, locks and completeness.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array, PartName, Samples, Source
from phalanx.data.statistics import measure
from phalanx.errors import DataError

VERSION = 1  # of the form of the files; another one is another cache
_PARTS: tuple[PartName, ...] = ("train", "test")


def write_arrays(folder: Path, source: Source) -> dict[str, Any]:
    """Decode a source into `.npy` files in an empty folder; return the contents of `meta.json`."""
    digest = hashlib.sha256()
    parts: dict[str, Any] = {}
    num_classes = source.num_classes or 0
    for name in _PARTS:
        writer = _PartWriter(folder, name, source)
        for chunk in _decoded(source, name):
            writer.append(chunk)
            digest.update(chunk.inputs.data)
            digest.update(chunk.targets.data)
            for values in chunk.features.values():
                digest.update(values.data)
        if writer.file_sizes:
            parts[name] = writer.finish()
            num_classes = max(num_classes, writer.num_outputs)
    if sum(parts.get("train", {}).get("file_sizes", ())) == 0:
        raise DataError(f"{source.location} holds no training samples", dataset=source.name)
    train = np.load(folder / "train_inputs.npy", mmap_mode="r")
    return {
        "version": VERSION,
        "source": source.name,
        "fingerprint": digest.hexdigest(),
        "num_classes": num_classes,
        "statistics": asdict(measure(train)),
        "parts": parts,
    }


def _decoded(source: Source, name: PartName) -> Iterator[Samples]:
    """Yield the chunks of a part; a file that cannot be read is distinguished from a full disk."""
    try:
        yield from source.chunks(name)
    except OSError as error:
        raise DataError(
            f"{source.name}: cannot read {error.filename or source.location} ({error.strerror}); "
            "check the file and its permissions",
            dataset=source.name,
        ) from error


class _PartWriter:
    """Append chunks to the two `.npy` files of a part."""

    def __init__(self, folder: Path, name: str, source: Source) -> None:
        self._name = name
        self._paths = (folder / f"{name}_inputs.npy", folder / f"{name}_targets.npy")
        self._source = source
        self._forms: tuple[tuple[Any, ...], ...] | None = None
        self._features: dict[str, list[npt.NDArray[np.float32]]] = {}
        self.file_sizes: list[int] = []
        self.num_outputs = 0

    def append(self, chunk: Samples) -> None:
        arrays = (chunk.inputs, chunk.targets)
        forms = tuple((array.dtype, array.shape[1:]) for array in arrays)
        if self._forms is None:
            self._forms = forms
            for path, array in zip(self._paths, arrays, strict=True):
                with path.open("wb") as file:
                    _write_header(file, array, num_rows=0)
        if forms != self._forms:
            raise DataError(
                f"{self._source.location}: the samples of one file are {forms} and those of "
                f"another {self._forms}; bring all files to one form",
                dataset=self._source.name,
            )
        for path, array in zip(self._paths, arrays, strict=True):
            with path.open("ab") as file:
                file.write(array.data)
        for name, values in chunk.features.items():
            self._features.setdefault(name, []).append(values)
        self.file_sizes.append(len(chunk))
        self.num_outputs = max(self.num_outputs, self._outputs_of(chunk))

    def finish(self) -> dict[str, Any]:
        num_rows = sum(self.file_sizes)
        assert self._forms is not None
        for path, (dtype, shape) in zip(self._paths, self._forms, strict=True):
            with path.open("r+b") as file:
                _write_header(file, np.empty((0, *shape), dtype), num_rows=num_rows)
                os.fsync(file.fileno())
        if self._features:
            columns = {name: np.concatenate(parts) for name, parts in self._features.items()}
            path = self._paths[0].with_name(f"{self._name}_features.npz")
            np.savez(path, allow_pickle=False, **columns)
        return {
            "file_sizes": self.file_sizes,
            "features": list(self._features),
            "inputs_bytes": self._paths[0].stat().st_size,
            "targets_bytes": self._paths[1].stat().st_size,
        }

    def _outputs_of(self, chunk: Samples) -> int:
        """Return the classes in the labels, or values per sample if the targets are not labels."""
        if chunk.targets.dtype != np.int64:
            return int(np.prod(chunk.targets.shape[1:]))
        highest = int(chunk.targets.max(initial=-1))
        known = self._source.num_classes
        if known is not None and highest >= known:
            raise DataError(
                f"{self._source.location}: label {highest} does not exist in {self._source.name}, "
                f"which has classes 0 to {known - 1}; the labels are corrupt",
                dataset=self._source.name,
            )
        return highest + 1


def _write_header(file: IO[bytes], like: Array, *, num_rows: int) -> None:
    """Write an `.npy` header; numpy pads it so that the row count can grow in place."""
    header = {
        "descr": np.lib.format.dtype_to_descr(like.dtype),
        "fortran_order": False,
        "shape": (num_rows, *like.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, header)
