"""Find the files of a data set under a data directory.

Never reads more than it must to tell one data set from another. The directory is an argument;
commands choose it (an option, `PHALANX_DATA`, the default).
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from phalanx.data.catalogue import CATALOGUE, Entry
from phalanx.errors import DataError

CIFAR_TAR = "cifar-10-python.tar.gz"
CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Located:
    """The files found for one data set."""

    name: str
    folder: Path
    layout: str
    """idx, cifar-tar, cifar-batches or parquet."""
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Missing:
    """A missing file."""

    what: str
    others_present: bool
    """Whether some of the data set's files are in the folder, so that it is the one meant."""


def refetch_hint(name: str) -> str:
    """Return the advice for a file that is missing or damaged."""
    return f"run `phalanx data fetch {name}` or `phalanx data fetch {name} --from DIR`"


def locate(entry: Entry, root: Path) -> Located:
    """Find the files of a built-in data set, or raise a `DataError` that says what is missing."""
    missing: list[_Missing] = []
    for folder in (*(root / folder for folder in entry.folders), root):
        found = _idx_in(entry, folder) if entry.kind == "idx" else _cifar_in(entry, folder)
        if isinstance(found, Located):
            return found
        missing.append(found)
    what = next((one.what for one in missing if one.others_present), missing[0].what)
    seen = ", ".join(str(folder) for folder in (root / entry.name, root))
    raise DataError(
        f"{entry.name}: {what} was not found in {seen}; {refetch_hint(entry.name)}",
        dataset=entry.name,
        path=root,
    )


def is_present(entry: Entry, root: Path) -> Located | None:
    """Find the files as `locate` does; None for a data set that is not there."""
    try:
        return locate(entry, root)
    except DataError:
        return None


def _idx_in(entry: Entry, folder: Path) -> Located | _Missing:
    files: list[Path] = []
    for remote in entry.files:
        packed = folder / remote.name
        plain = folder / remote.name.removesuffix(".gz")
        present = packed if packed.is_file() else plain
        if not present.is_file():
            return _Missing(remote.name, others_present=bool(files))
        files.append(present)
    if _belongs_to_another(entry, files):
        return _Missing(entry.files[0].name, others_present=False)
    return Located(name=entry.name, folder=folder, layout="idx", files=tuple(files))


def _belongs_to_another(entry: Entry, files: list[Path]) -> bool:
    """Return whether these files are another data set's: all of the family have the same names.

    Tells by the test labels: they are short, and no two data sets share them.
    """
    raw = files[-1].read_bytes()
    try:
        contents = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (EOFError, zlib.error, OSError):
        return False  # damaged: reading it later says so, with the right words
    digests = {hashlib.sha256(raw).hexdigest(), hashlib.sha256(contents).hexdigest()}
    return any(
        other.files[-1].sha256 in digests
        for other in CATALOGUE.values()
        if other.kind == "idx" and other.name != entry.name
    )


def _cifar_in(entry: Entry, folder: Path) -> Located | _Missing:
    tar = folder / CIFAR_TAR
    if tar.is_file():
        return Located(name=entry.name, folder=folder, layout="cifar-tar", files=(tar,))
    for place in (folder / CIFAR_FOLDER, folder):
        batches = tuple(place / name for name in CIFAR_BATCHES)
        there = [path.is_file() for path in batches]
        if all(there):
            return Located(name=entry.name, folder=place, layout="cifar-batches", files=batches)
        if any(there):
            return _Missing(str(batches[there.index(False)]), others_present=True)
    train, test = _parquet_parts(folder)
    if train and test:
        files = (*train, *test)
        return Located(name=entry.name, folder=folder, layout="parquet", files=files)
    if train or test:
        part = "test" if train else "train"
        return _Missing(f"the {part} part of the Parquet files in {folder}", others_present=True)
    what = f"{CIFAR_TAR}, {CIFAR_FOLDER}/ or cifar10-train.parquet"
    return _Missing(what, others_present=False)


def _parquet_parts(folder: Path) -> tuple[list[Path], list[Path]]:
    """Find CIFAR-10 as Parquet: cifar10-train.parquet, or train-00000-of-00001.parquet etc."""
    for prefix in ("cifar10-", ""):
        train = sorted(folder.glob(f"{prefix}train*.parquet"))
        test = sorted(folder.glob(f"{prefix}test*.parquet"))
        if train or test:
            return train, test
    return [], []
