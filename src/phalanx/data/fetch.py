"""Download or copy the files of a built-in data set into the data directory, verified.

A file appears under its name only when it is complete and its checksum matches. Progress goes to a
callback; commands draw it.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import ssl
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO

from phalanx.data.catalogue import Entry, RemoteFile
from phalanx.data.directory import Located, locate
from phalanx.data.sources import source_of
from phalanx.errors import DataError, StoreError

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes done and the bytes in total (0: not known)."""

_CHUNK_BYTES = 2**18


def download(
    entry: Entry,
    *,
    root: Path,
    on_progress: Progress = lambda name, done_bytes, total_bytes: None,
    timeout: timedelta = timedelta(seconds=30),
) -> tuple[Path, ...]:
    """Download a data set's files into `root/<name>/`; files that are there and right are kept.

    Raises:
        DataError: No mirror delivered a file whole and with the right checksum.
        StoreError: The file could not be written.
    """
    paths = []
    for remote in entry.files:
        path = root / entry.name / remote.name
        if path.is_file() and _problem(path, remote) is None:
            on_progress(remote.name, remote.size_bytes, remote.size_bytes)
        else:
            _from_mirrors(entry, remote, path, on_progress, timeout)
        paths.append(path)
    return tuple(paths)


def copy_from(
    entry: Entry,
    origin: Path,
    *,
    root: Path,
    on_progress: Progress = lambda name, done_bytes, total_bytes: None,
) -> tuple[Path, ...]:
    """Copy a data set's files from a directory into `root/<name>/`, after checking them.

    `origin` is laid out like a data directory, or is the folder of the files.

    Raises:
        DataError: A file is missing or damaged in `origin`.
        StoreError: The file could not be written.
    """
    located = locate(entry, origin)
    verify(entry, located)
    paths = []
    for path in located.files:
        target = root / entry.name / path.name
        if not (target.exists() and target.samefile(path)):
            _copy_one(path, target, on_progress)
        paths.append(target)
    return tuple(paths)


def verify(entry: Entry, located: Located) -> None:
    """Check found files by checksum where one is known for contents, else by decoding them."""
    published = {remote.name.removesuffix(".gz"): remote for remote in entry.files}
    for path in located.files:
        remote = published.get(path.name.removesuffix(".gz"))
        if remote is not None and remote.of_contents:
            problem = _problem(path, remote)
            if problem is not None:
                raise DataError(
                    f"{path} {problem}; get it again, or run `phalanx data fetch {entry.name}`",
                    path=path,
                )
    source = source_of(located)
    for part in ("train", "test"):
        for _ in source.chunks(part):
            pass


def _from_mirrors(
    entry: Entry, remote: RemoteFile, path: Path, on_progress: Progress, timeout: timedelta
) -> None:
    problems = []
    for mirror in entry.mirrors:
        with _temporary(path) as temporary:
            problem = _download_one(mirror + remote.name, temporary, remote, on_progress, timeout)
            if problem is None:
                os.replace(temporary, path)
                return
            problems.append(f"{mirror + remote.name} {problem}")
    raise DataError(
        f"cannot download {remote.name}: {'; '.join(problems)}. Check the connection and try "
        f"again, or take copies with `phalanx data fetch {entry.name} --from DIR`",
        dataset=entry.name,
        file=remote.name,
    )


def _download_one(
    url: str, target: Path, remote: RemoteFile, on_progress: Progress, timeout: timedelta
) -> str | None:
    """Download to `target`; return the problem in words, or None."""
    try:
        with urllib.request.urlopen(url, timeout=timeout.total_seconds()) as response:
            declared = int(response.headers.get("Content-Length") or 0)
            total = declared or remote.size_bytes
            done = _pour(response, target, lambda done: on_progress(remote.name, done, total))
    except urllib.error.HTTPError as error:
        with error:
            return f"answered {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return f"could not be reached ({error.reason})"
    except (TimeoutError, http.client.HTTPException, ConnectionError, ssl.SSLError) as error:
        return f"broke off ({error or type(error).__name__})"
    if declared and done != declared:
        return f"broke off after {done:,} of {declared:,} bytes"
    return _problem(target, remote)


def _copy_one(path: Path, target: Path, on_progress: Progress) -> None:
    total = path.stat().st_size
    with _temporary(target) as temporary:
        with path.open("rb") as file:
            _pour(file, temporary, lambda done: on_progress(path.name, done, total))
        if _sha256(temporary) != _sha256(path):
            raise StoreError(
                f"{target} came out different from {path}; check the disk", path=target
            )
        os.replace(temporary, target)


def _pour(
    source: IO[bytes] | http.client.HTTPResponse, target: Path, on_bytes: Callable[[int], None]
) -> int:
    """Copy a stream to a file; return the number of bytes."""
    done = 0
    with target.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            on_bytes(done)
        file.flush()
        os.fsync(file.fileno())
    return done


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; nothing is left there afterwards."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise StoreError(
            f"cannot write {path} ({error.strerror or error}); free some space, or give another "
            "place with --data or PHALANX_DATA",
            path=path,
        ) from error
    finally:
        with suppress(OSError):  # not there, or in a folder that could not be made
            temporary.unlink()


def _problem(path: Path, remote: RemoteFile) -> str | None:
    """Return in words what is wrong with a file that should be `remote`, or None."""
    try:
        digest = _sha256(path, unpack=remote.of_contents)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return f"is truncated or corrupt ({error})"
    if digest == remote.sha256:
        return None
    return f"has the wrong checksum (sha256 {digest[:12]}..., not {remote.sha256[:12]}...)"


def _sha256(path: Path, *, unpack: bool = False) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if unpack and is_packed else raw as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
