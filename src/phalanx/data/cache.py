"""Cache decoded data sets on disk: each is decoded once and then memory-mapped by every worker.

One folder per data set holds plain `.npy` files and `meta.json`. It is filled under a temporary
name and renamed when complete, so a half-written one is never used; a lock lets one process of a
machine decode while the others wait. A folder that does not match its description is filled again.
`cache_writer` writes the files.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array, Source
from phalanx.data.cache_writer import VERSION, write_arrays
from phalanx.data.statistics import Statistics
from phalanx.errors import StoreError, TimeoutExpired

_POLL_S = 0.05  # flock cannot wait with a deadline, so waiting is trying again

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


def open_cached(
    source: Source, *, cache_root: Path, deadline: timedelta = timedelta(minutes=30)
) -> CachedData:
    """Map a data set into memory, decoding it first if this has not been done.

    Args:
        source: What to decode; it is read only if the cache lacks it.
        cache_root: Folder of all caches of this user on this machine.
        deadline: How long to wait for another process that is decoding the same data.

    Raises:
        DataError: A file of the source is missing or damaged.
        StoreError: The cache cannot be written.
        TimeoutExpired: Another process held the lock for too long.
    """
    key = hashlib.sha256(f"{VERSION}\0{source.fingerprint()}".encode()).hexdigest()[:16]
    folder = cache_root / f"{_safe(source.name)}-{key}"
    cached = _open(folder)
    if cached is not None:
        return cached
    try:
        cache_root.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f"{folder.name}.lock"), deadline):
            cached = _open(folder)  # another process may have filled it while this one waited
            if cached is None:
                _remove_leftovers(folder)
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
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
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


@contextmanager
def _lock(path: Path, deadline: timedelta) -> Iterator[None]:
    """Hold an advisory lock on a file; where the file system has none, rename alone decides."""
    ends_at = time.monotonic() + deadline.total_seconds()
    pause = threading.Event()
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise TimeoutExpired(
                        f"another process has held {path} for {deadline.total_seconds():.0f} s; "
                        "end it, or delete the file if there is none",
                        activity="waiting for another process to decode the data",
                        path=path,
                    ) from None
                pause.wait(_POLL_S)
            except OSError:
                logger.warning("no file locks on %s; processes may decode twice", path.parent)
                break
        yield


def _remove_leftovers(folder: Path) -> None:
    """Delete what a process that was killed while decoding has left behind."""
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:60]
