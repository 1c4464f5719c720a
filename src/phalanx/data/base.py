"""Define the interface of a data source.

A source only reads files. Splitting, sharding, shuffling and batching happen later, on the decoded
arrays. Called by `cache`, which decodes each source once.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from phalanx.errors import DataError
from phalanx.spec.data import MetricName
from phalanx.spec.fields import InputField
from phalanx.spec.modality import Modality

PartName = Literal["train", "validation", "test"]
Array = npt.NDArray[Any]
InputArray = npt.NDArray[np.uint8] | npt.NDArray[np.signedinteger] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """Decoded samples in the one form that the rest of the package uses.

    `inputs` is uint8 (N, H, W, C) for images, int32 or int64 (N, L) for rows of whole numbers and
    float32 (N, ...) for anything else; `targets` is int64 (N,) for classes, int64 (N, ...) for a
    class per position (-100: does not count) and float32 (N, ...) for values. Samples of several
    sensors are packed rows, float32 (N, values): see `spec.modality`; those of several inputs are
    rows of bytes, uint8 (N, bytes): see `spec.fields`.
    """

    inputs: InputArray
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    features: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Features of each sample that networks do not see, for partitioning."""

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Scale:
    """Scale of classes that are ranges of a number: class c begins at low + c * width."""

    low: float
    width: float
    name: str


class Source(ABC):
    """A data set in files.

    Every failure to read is a `DataError` that names the file and says what to do.
    """

    test_share: float = 0.1
    """Share of the samples that becomes the test part when the files offer none."""

    num_classes: int | None = None
    """Classes that the data set is known to have; None: as many as its labels show."""

    class_names: tuple[str, ...] = ()
    """Names of the classes; empty: their numbers."""

    metrics: tuple[MetricName, ...] = ("accuracy",)
    """Usual metrics of this data, unless the job names others."""

    scale: Scale | None = None
    """Scale of the classes, if they are ranges of a number."""

    modalities: tuple[Modality, ...] = ()
    """Modalities of a packed row; empty: samples have one modality."""

    test_map: tuple[int, int] | None = None
    """Rows and columns, if the test samples lie on a grid, in its order."""

    parts: tuple[PartName, ...] = ("train", "test")
    """Parts that the source may have; without validation, training samples are held out for it."""

    fields: tuple[InputField, ...] = ()
    """Inputs of a packed row, known once a chunk is decoded; empty: samples have one input."""

    is_one_file: bool = False
    """Whether chunks are no files, so that the shard policy `file` has nothing to give."""

    normalize: Literal["standard", "none"] = "standard"
    """How inputs are normalised unless the job says it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the data set."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Origin of the samples, for messages and tables."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a cheap identity of the files: it changes when any of them does."""

    @abstractmethod
    def chunks(self, part: PartName) -> Iterator[Samples]:
        """Decode one part, one chunk per file, in an order that never changes.

        No chunk at all means that the files offer no such part; only `train` must be there. A chunk
        is also the unit that the shard policy `file` gives to one worker.
        """


class FileSource(Source):
    """A data set that is identified by its files: name, size, time of change, and decoder."""

    address: str | None = None
    """Where the files were copied from; None: they are the user's own."""

    def __init__(self, name: str, location: Path, files: tuple[Path, ...], *, decoder: str) -> None:
        self._name = name
        self._location = location
        self._files = files
        self._decoder = decoder

    @property
    @override
    def name(self) -> str:
        return self._name

    @property
    @override
    def location(self) -> str:
        return self.address or str(self._location)

    @override
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self._decoder.encode())
        for path in self._files:
            stat = path.stat()
            digest.update(f"\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        return digest.hexdigest()

    def in_users_words(self, error: DataError) -> DataError:
        """Return an error that names files by the user's address rather than by their copies."""
        if self.address is None:
            return error
        said = str(error).replace(str(self._location), self.address)
        return DataError(said, **error.facts | {"path": self.address})
