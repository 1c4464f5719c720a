"""Cache decoded data sets on disk: each is decoded once and then memory-mapped by every worker.

One folder per data set holds plain `.npy` files and `meta.json`. It is filled under a temporary
name and renamed when complete, so a half-written one is never used; a lock lets one process of a
machine decode while the others wait. A folder that does not match its description is filled again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array, PartName, Samples, Source
from phalanx.data.file_lock import hold_lock
from phalanx.data.normalize import UNMEASURED, Statistics, measure
from phalanx.errors import DataError, StoreError
from phalanx.spec.fields import InputField

VERSION = 1  # of the form of the files; another one is another cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedPart:
    """One part of a data set, mapped read-only."""

    inputs: Array
    targets: Array
    file_sizes: tuple[int, ...]
    """Samples per file, in the order of the arrays."""
    features: Mapping[str, npt.NDArray[np.float32]]
    """Features of each sample that networks do not see."""


@dataclass(frozen=True)
class CachedData:
    """A decoded data set."""

    folder: Path
    fingerprint: str
    """Digest of the decoded samples: equal on any machine that holds the same files."""
    train: CachedPart
    test: CachedPart | None
    num_classes: int
    statistics: Statistics
    validation: CachedPart | None = None
    fields: tuple[InputField, ...] = ()


def open_cached(
    source: Source, *, cache_root: Path, deadline: timedelta = timedelta(minutes=30)
) -> CachedData:
    """Map a data set into memory, decoding it first if this has not been done.

    Waits until the deadline for another process that is decoding the same data.

    Raises:
        DataError: A file of the source is missing or damaged.
        StoreError: The cache cannot be written.
        TimeoutExpired: Another process held the lock for too long.
    """
    key = hashlib.sha256(f"{VERSION}\0{source.fingerprint()}".encode()).hexdigest()[:16]
    name = re.sub(r"[^\w-]", "_", source.name)[:60]
    folder = cache_root / f"{name}-{key}"
    cached = _open(folder)
    if cached is not None:
        return cached
    try:
        cache_root.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder.with_name(f"{folder.name}.lock"), deadline, "decode the data"):
            cached = _open(folder)  # another process may have filled it while this one waited
            if cached is None:
                # What a process that was killed while decoding has left behind.
                for leftover in cache_root.glob(f".{folder.name}.*"):
                    shutil.rmtree(leftover, ignore_errors=True)
                _fill(folder, source)
                cached = _open(folder)
    except OSError as error:
        raise StoreError(
            f"cannot write the decoded data to {folder} ({error}); "
            "free some space or set PHALANX_CACHE to another folder",
            path=folder,
        ) from error
    assert cached is not None, "a cache that was just written must open"
    return cached


def _open(folder: Path) -> CachedData | None:
    """Open the cache in this folder; None if it is absent or does not match its description."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["version"] != VERSION:
            return None
        parts = {name: _open_part(folder, name, meta["parts"][name]) for name in meta["parts"]}
        return CachedData(
            folder=folder,
            fingerprint=meta["fingerprint"],
            train=parts["train"],
            test=parts.get("test"),
            num_classes=meta["num_classes"],
            statistics=Statistics(**{k: tuple(v) for k, v in meta["statistics"].items()}),
            validation=parts.get("validation"),
            fields=msgspec.convert(meta.get("fields", []), type=tuple[InputField, ...]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        logger.warning("the cache in %s is damaged (%s) and will be filled anew", folder, error)
        return None


def _open_part(folder: Path, name: str, meta: dict[str, Any]) -> CachedPart:
    arrays = []
    for kind in ("inputs", "targets"):
        path = folder / f"{name}_{kind}.npy"
        # A map of a file that is too short opens well and kills the process when it is read.
        if path.stat().st_size != meta[f"{kind}_bytes"]:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if len(array) != sum(meta["file_sizes"]):
            raise ValueError(f"{path.name} has {len(array)} samples")
        arrays.append(np.asarray(array))
    return CachedPart(
        inputs=arrays[0],
        targets=arrays[1],
        file_sizes=tuple(meta["file_sizes"]),
        features=_open_features(folder, name, meta),
    )


def _open_features(
    folder: Path, name: str, meta: dict[str, Any]
) -> dict[str, npt.NDArray[np.float32]]:
    if not meta.get("features"):
        return {}
    with np.load(folder / f"{name}_features.npz", allow_pickle=False) as stored:
        return {feature: stored[feature] for feature in meta["features"]}


def _fill(folder: Path, source: Source) -> None:
    """Decode into a folder of a temporary name and give it the final one when complete."""
    started = time.monotonic()
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        meta = write_arrays(temporary, source)
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
        if folder.exists():
            folder.rename(temporary / "replaced")
        try:
            temporary.rename(folder)
        except OSError:
            # Without locks another process may have been first; then its result is as good.
            if _open(folder) is None:
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    logger.info("decoded %s into %s in %.1f s", source.name, folder, time.monotonic() - started)


def write_arrays(folder: Path, source: Source) -> dict[str, Any]:
    """Decode a source into `.npy` files in an empty folder; return the contents of `meta.json`."""
    digest = hashlib.sha256()
    parts: dict[str, Any] = {}
    num_classes = source.num_classes or 0
    for name in source.parts:
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
        # Inputs of several kinds in one row have no common statistics.
        "statistics": asdict(UNMEASURED if source.fields else measure(train)),
        "fields": msgspec.to_builtins(source.fields),
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
            "file_sizes": [num_rows] if self._source.is_one_file else self.file_sizes,
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
