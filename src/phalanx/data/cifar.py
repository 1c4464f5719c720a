"""Read CIFAR-10 as published: pickled batches in a tar archive, or unpacked in a folder.

A pickle can run any code, so only the few names that such a batch needs are allowed.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from phalanx.data.base import FileSource, PartName, Samples
from phalanx.data.directory import CIFAR_BATCHES, Located, refetch_hint
from phalanx.errors import DataError

_ROW_BYTES = 3 * 32 * 32


class CifarSource(FileSource):
    """Five training batches and one test batch; each batch counts as one file for sharding."""

    num_classes = 10

    def __init__(self, located: Located) -> None:
        super().__init__(located.name, located.folder, located.files, decoder="cifar-1")
        self._is_packed = located.layout == "cifar-tar"
        self._hint = refetch_hint(located.name)

    @override
    def chunks(self, part: PartName) -> Iterator[Samples]:
        names = CIFAR_BATCHES[:-1] if part == "train" else CIFAR_BATCHES[-1:]
        if self._is_packed:
            yield from self._from_tar(self._files[0], names)
            return
        for path in self._files:
            if path.name in names:
                with path.open("rb") as file:
                    yield self._decode(file, str(path))

    def _from_tar(self, path: Path, names: tuple[str, ...]) -> Iterator[Samples]:
        try:
            with tarfile.open(path) as archive:
                # One pass in the archive's own order would save unpacking, but the order of the
                # members is not the order of the batches; keep the contents and sort.
                contents = {
                    Path(member.name).name: file.read()
                    for member in archive
                    if Path(member.name).name in names
                    and (file := archive.extractfile(member)) is not None
                }
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise DataError(
                f"{path} is truncated or corrupt ({error}); {self._hint}", path=path
            ) from error
        for name in names:
            if name not in contents:
                raise DataError(f"{path} lacks {name}; {self._hint}", path=path)
            yield self._decode(io.BytesIO(contents[name]), f"{path} ({name})")

    def _decode(self, file: IO[bytes], origin: str) -> Samples:
        try:
            batch = _BatchUnpickler(file, encoding="latin1").load()
            rows = np.asarray(batch["data"])
            labels = np.asarray(batch["labels"], dtype=np.int64)
        except (
            # What the unpickler raises on damaged input is not limited to UnpicklingError.
            pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError,
            AttributeError, ImportError, MemoryError, OverflowError,
        ) as error:  # fmt: skip
            raise DataError(
                f"{origin} is not a CIFAR-10 batch or is corrupt ({error}); {self._hint}",
                path=origin,
            ) from error
        if rows.dtype != np.uint8 or rows.shape != (len(labels), _ROW_BYTES):
            raise DataError(
                f"{origin} holds an array of shape {rows.shape} for {len(labels)} labels, "
                f"not ({len(labels)}, {_ROW_BYTES}); {self._hint}",
                path=origin,
            )
        images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Samples(inputs=np.ascontiguousarray(images), targets=labels)


class _BatchUnpickler(pickle.Unpickler):
    """Unpickle only what a batch of arrays needs, under the names of old and new numpy."""

    @override
    def find_class(self, module_name: str, global_name: str) -> Callable[..., object]:
        if module_name in ("numpy.core.multiarray", "numpy._core.multiarray"):
            if global_name == "_reconstruct":
                return _empty_array
        elif (module_name, global_name) == ("numpy", "ndarray"):
            return np.ndarray
        elif (module_name, global_name) == ("numpy", "dtype"):
            return _element_type
        elif (module_name, global_name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")


def _empty_array(kind: type, shape: tuple[int, ...], code: object) -> npt.NDArray[np.uint8]:
    return np.ndarray(shape, dtype=np.uint8)


def _element_type(name: str, align: object = False, copy: object = False) -> np.dtype[np.generic]:
    # The published pickles give `align` as 0 where numpy now wants False.
    return np.dtype(name, align=bool(align), copy=bool(copy))


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode(encoding)
