"""Copy the files of a data set by URL to this machine, once, within a limit of disk space.

A copy appears under its name only when all of it has arrived, and belongs to the files as they
were: when one of them changes in the store, the data set is copied again. What has not been used
for longest gives way. Called by `sources`; commands call it to show progress.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path, PurePosixPath

from phalanx.data.file_lock import hold_lock
from phalanx.errors import DataError, StoreError
from phalanx.spec.urls import last_name, local_path
from phalanx.store.url_store import Progress, StoredObject, UrlStore

FOLDER = "files"
"""Below the directory of decoded data."""
_LIST = "copy.json"
_AT_ONCE = 8  # small files take a round trip each
_IN_USE_S = 3600.0  # what was opened within this time may still be decoded
_SAY_EVERY_S = 5.0

logger = logging.getLogger(__name__)


def local_files(
    url: str,
    *,
    cache_root: Path,
    limit_bytes: int,
    on_progress: Progress | None = None,
    deadline: timedelta = timedelta(hours=6),
) -> Path:
    """Return the path of a data set by URL on this machine, copied if that has not been done.

    Args:
        url: A file, or a folder, which is copied with all that is in it.
        cache_root: Directory of decoded data; copies are below it.
        limit_bytes: Of all copies together.
        on_progress: Called with the address, the bytes done and the bytes in all.
        deadline: For another process that copies the same files.

    Raises:
        DataError: The address does not exist, is refused, or does not fit.
        StoreError: The store did not answer, or the copy cannot be written.
        TimeoutExpired: Another process held the lock for too long.
    """
    there = local_path(url)
    if there is not None:
        if not there.exists():
            raise DataError(f"{url} does not exist; check the address", url=url)
        return there
    store = UrlStore(url)
    try:
        found = _listed(store)
        folder = cache_root / FOLDER / _name_of(url, found)
        if not _is_whole(folder, found):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with hold_lock(folder.with_name(f"{folder.name}.lock"), deadline, "copy the data"):
                if not _is_whole(folder, found):  # another process may have copied it meanwhile
                    _make_room(folder, sum(one.size for one in found), limit_bytes, url)
                    _copy(store, found, folder, on_progress or _Log())
        os.utime(folder / _LIST)  # when it was last used
    except OSError as error:
        raise StoreError(
            f"cannot write the copy of {url} to {cache_root / FOLDER} ({error.strerror or error}); "
            "free some space or set PHALANX_CACHE to another folder",
            path=cache_root,
        ) from error
    finally:
        store.close()
    return folder / last_name(url)


def _listed(store: UrlStore) -> list[StoredObject]:
    url = store.url
    try:
        found = [one for one in store.list() if not _is_hidden(one.name)]
    except StoreError as error:
        if error.facts.get("kind") in ("denied", "missing"):
            raise DataError(str(error), url=url) from error
        raise
    if not found:
        raise DataError(f"{url} does not exist, or holds no files; check the address", url=url)
    for one in found:
        if ".." in PurePosixPath(one.name).parts or one.name.startswith("/"):
            raise DataError(f"{url} holds a file with the name '{one.name}'", url=url)
    return found


def _is_hidden(name: str) -> bool:
    """Tell whether a name is a store's own, such as a file that is still being written."""
    return any(part.startswith((".", "_temporary")) for part in PurePosixPath(name).parts)


def _name_of(url: str, found: Sequence[StoredObject]) -> str:
    digest = hashlib.sha256(url.encode())
    for one in found:
        digest.update(f"\0{one.name}\0{one.size}\0{one.tag}".encode())
    name = re.sub(r"[^\w-]", "_", last_name(url))[:60]
    return f"{name}-{digest.hexdigest()[:16]}"


def _is_whole(folder: Path, found: Sequence[StoredObject]) -> bool:
    try:
        listed = json.loads((folder / _LIST).read_text())
        return len(listed["files"]) == len(found) and all(
            (folder / name).stat().st_size == size for name, size in listed["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _copy(
    store: UrlStore, found: Sequence[StoredObject], folder: Path, on_progress: Progress
) -> None:
    """Copy into a folder of a temporary name, which gets the final one when complete."""
    url = store.url
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        _fetch_all(store, found, temporary / last_name(url), on_progress)
        names = {
            str(PurePosixPath(last_name(url), one.name) if one.name else last_name(url)): one.size
            for one in found
        }
        (temporary / _LIST).write_text(json.dumps({"url": url, "files": names}))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fetch_all(
    store: UrlStore, found: Sequence[StoredObject], target: Path, on_progress: Progress
) -> None:
    """Fetch files, several at once, over as many connections as that takes."""
    total, lock, done = sum(one.size for one in found), threading.Lock(), dict[str, int]()
    stores, own = list[UrlStore](), threading.local()

    def advance(name: str, num_bytes: int, _: int) -> None:
        with lock:
            done[name] = num_bytes
            on_progress(store.url, sum(done.values()), total)

    def fetch(one: StoredObject) -> None:
        if not hasattr(own, "store"):
            own.store = store if store.takes_several else UrlStore(store.url)
            stores.append(own.store)
        path = target / one.name if one.name else target
        own.store.fetch(one.name, path, advance, listed=one)
        # The decoded data is known by this time too; it is the same after another copy.
        os.utime(path, (0, int(one.tag[:8], 16)))

    pool = ThreadPoolExecutor(min(_AT_ONCE, len(found)), thread_name_prefix="phalanx-fetch")
    try:
        for _ in pool.map(fetch, found):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        for other in stores:
            other.close()


def _make_room(folder: Path, needed: int, limit: int, url: str) -> None:
    """Delete the copies that have not been used for longest, until another one fits."""
    if needed > limit:
        raise DataError(
            f"{url} has {needed / 1e9:.3g} GB, and copies of files by URL may take "
            f"{limit / 1e9:.3g} GB on each machine; raise data.copies_gb",
            url=url,
        )
    kept = sorted(_copies(folder.parent))
    taken = sum(size for _, size, _ in kept)
    for used_at, size, path in kept:
        if taken + needed <= limit:
            break
        if time.time() - used_at > _IN_USE_S:
            logger.info("deleting the copy in %s, which was not used for longest", path)
            shutil.rmtree(path, ignore_errors=True)
            taken -= size
    if taken + needed > limit:
        raise DataError(
            f"{url} has {needed / 1e9:.3g} GB, and copies that were used within the last hour take "
            f"{taken / 1e9:.3g} of the {limit / 1e9:.3g} GB for them; raise data.copies_gb",
            url=url,
        )
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise DataError(
            f"{url} has {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free in "
            f"{folder.parent}; free some space or set PHALANX_CACHE to another folder",
            url=url,
        )


def _copies(root: Path) -> list[tuple[float, int, Path]]:
    """List the copies in a folder: when each was last used, its bytes, and where it is."""
    found = []
    for path in root.glob(f"*/{_LIST}"):
        try:
            sizes = json.loads(path.read_text())["files"].values()
            found.append((path.stat().st_mtime, sum(sizes), path.parent))
        except (OSError, ValueError, KeyError):
            continue  # another process has just deleted it
    return found


class _Log:
    """Write progress to the log, every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SAY_EVERY_S

    def __call__(self, url: str, done: int, total: int) -> None:
        if done == total or time.monotonic() > self._next:
            logger.info("%s: %.1f of %.1f MB copied", url, done / 1e6, total / 1e6)
            self._next = time.monotonic() + _SAY_EVERY_S
