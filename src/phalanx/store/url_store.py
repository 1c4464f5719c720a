"""Read and write files of a store by URL: whole or in ranges, with retries and a deadline.

Every scheme of fsspec works (`file`, `s3`, `sftp`, `hdfs`, `webhdfs`, `gs`, `http` …); the library
of a scheme is imported on use. A file is replaced as a whole or not at all: where a store has
names for files (`file`, `sftp`, `hdfs`), under another name that is then changed; object stores
show an object only when all of it has arrived. Credentials are the store's own business
(`~/.aws`, `~/.ssh` …) and never pass through here.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from phalanx.errors import SpecError, StoreError
from phalanx.spec.urls import is_url, scheme_of
from phalanx.store.atomic import Replacement
from phalanx.store.url_errors import brief_words, explain

Progress = Callable[[str, int, int], None]
"""Called with a name, the bytes done and the bytes in all."""

_EXTRAS = {"s3": "s3", "s3a": "s3", "sftp": "sftp", "ssh": "sftp", "hdfs": "hdfs"}
_RENAMING = ("file", "sftp", "ssh", "hdfs", "webhdfs")
_ONE_BY_ONE = ("sftp", "ssh")  # their connections take one request at a time
_BLOCK_BYTES = 8 << 20
_FIRST_PAUSE_S = 0.2
_MOST_PAUSE_S = 5.0

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class RetryRule:
    """How long a store may take."""

    request_s: float = 30.0
    """For one request; one that takes longer is repeated over a new connection."""
    deadline_s: float = 120.0
    """Without any progress, then the transfer fails."""


@dataclass(frozen=True)
class StoredObject:
    """A file in a store."""

    name: str
    """Below the store's address; empty: the address itself."""
    size: int
    tag: str
    """Changes with the contents, as far as the store can tell."""


class UrlStore:
    """Files below one address.

    Every method raises `StoreError` with one sentence: missing, refused, or not answered within the
    deadline. Methods may be called from several threads.

    Args:
        url: The address, or a plain path.
        rule: How long a request and a transfer may take.
    """

    def __init__(self, url: str | Path, rule: RetryRule | None = None) -> None:
        self.url = str(url).rstrip("/") or "/"
        self._rule = rule or RetryRule()
        self._scheme = scheme_of(self.url) if is_url(self.url) else "file"
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._connected: tuple[Any, str] | None = None

    @property
    def takes_several(self) -> bool:
        """Whether requests of several threads run side by side over the connection."""
        return self._scheme not in _ONE_BY_ONE

    def stat(self, name: str = "") -> StoredObject:
        """Describe one file."""
        info = self._retried(name, lambda fs, path: _checked_info(fs, path))
        return _stored(name, info)

    def exists(self, name: str = "") -> bool:
        """Tell whether a file is there."""
        return bool(self._retried(name, lambda fs, path: fs.isfile(path)))

    def list(self, folder: str = "") -> list[StoredObject]:
        """List all files below a folder, sorted by name; empty if there is none."""

        def find(fs: Any, path: str) -> list[StoredObject]:
            fs.invalidate_cache()
            found = fs.find(path, detail=True)
            root = self._root_of(fs)
            named = [
                # Of an address that is a file, sftp lists the name alone.
                _stored(_below(root, fs._strip_protocol(one)), info or fs.info(one))
                for one, info in found.items()
            ]
            return sorted(named, key=lambda one: one.name)

        return self._retried(folder, find)

    def read(self, name: str = "", start: int = 0, stop: int | None = None) -> bytes:
        """Read a file, or the bytes from `start` to before `stop` of it."""

        def cat(fs: Any, path: str) -> bytes:
            found = fs.cat_file(path, start=start or None, end=stop)
            if stop is not None and len(found) != stop - start:
                raise _CutShort(f"{len(found)} of {stop - start} bytes arrived")
            return bytes(found)

        return self._retried(name, cat)

    def fetch(
        self,
        name: str,
        target: Path,
        on_progress: Progress | None = None,
        *,
        listed: StoredObject | None = None,
    ) -> StoredObject:
        """Copy a file to this machine, whole or not at all.

        Args:
            name: The file.
            target: Its path here.
            on_progress: Called with the name, the bytes done and the bytes in all.
            listed: What `list` or `stat` said of it; it must not have changed since.

        Raises:
            StoreError: Also if it changed or was cut off meanwhile; `target` is as it was.
        """
        info = listed or self.stat(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        replacement = Replacement(target)
        try:
            for first in range(0, info.size, _BLOCK_BYTES):
                last = min(first + _BLOCK_BYTES, info.size)
                replacement.write(self.read(name, first, last))
                if on_progress is not None:
                    on_progress(name or self.url, last, info.size)
            now = self.stat(name)
            if (now.size, now.tag) != (info.size, info.tag):
                raise StoreError(
                    f"{self._full(name)} was replaced while it was read; try again", url=self.url
                )
            replacement.commit()
        finally:
            replacement.abandon()
        return info

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically."""

        def put(fs: Any, path: str) -> None:
            self._replace(fs, path, lambda there: fs.pipe_file(there, content), len(content))

        self._retried(name, put, at_least_s=_upload_s(len(content)))

    def put(self, source: Path, name: str, on_progress: Progress | None = None) -> int:
        """Copy a file of this machine into the store, atomically; return its size in bytes."""
        size = source.stat().st_size

        def upload(fs: Any, path: str) -> None:
            self._replace(fs, path, lambda there: fs.put_file(str(source), there), size)

        self._retried(name, upload, at_least_s=_upload_s(size))
        if on_progress is not None:
            on_progress(name, size, size)
        return size

    def delete(self, name: str) -> None:
        """Delete a file; one that is not there is passed over."""

        def remove(fs: Any, path: str) -> None:
            with suppress(FileNotFoundError):
                fs.rm_file(path)

        self._retried(name, remove)

    def close(self) -> None:
        """End the connection; the next request opens another."""
        with self._lock:
            connected, self._connected = self._connected, None
        close = getattr(connected[0], "close", None) if connected else None
        if close is not None:
            with suppress(Exception):  # it is broken, or ends anyway
                close()

    def _replace(self, fs: Any, path: str, write: Callable[[str], object], size: int) -> None:
        """Write under another name where a store has names, check the size, and rename."""
        there = path
        if self._scheme in _RENAMING:
            folder, _, last = path.rpartition("/")
            if folder:
                fs.makedirs(folder, exist_ok=True)
            there = f"{folder}/.{last}.{secrets.token_hex(4)}"
        try:
            write(there)
            fs.invalidate_cache()
            arrived = int(fs.info(there)["size"])
            if arrived != size:
                raise _CutShort(f"{arrived} of {size} bytes arrived")
            if there != path:
                _rename(fs, there, path)
        except BaseException:
            if there != path:
                with suppress(Exception):  # the error that counts is the first
                    fs.rm_file(there)
            raise

    def _retried(
        self, name: str, action: Callable[[Any, str], Result], *, at_least_s: float = 0.0
    ) -> Result:
        """Call the store until it answers, the error is a lasting one, or the deadline passes."""
        pause_s, pause = _FIRST_PAUSE_S, threading.Event()
        ends_at = time.monotonic() + max(self._rule.deadline_s, at_least_s)
        limit_s = min(max(self._rule.request_s, at_least_s), ends_at - time.monotonic())
        while True:
            try:
                return _within(
                    min(limit_s, self._rule.deadline_s), lambda: self._call(name, action)
                )
            except (StoreError, SpecError):
                raise
            except Exception as error:  # libraries of stores raise anything; see `url_errors`
                trouble = explain(error, self._full(name))
                if not trouble.is_passing:
                    raise StoreError(trouble.sentence, url=self.url, kind=trouble.kind) from error
                if time.monotonic() + pause_s > ends_at:
                    raise StoreError(
                        f"{self._full(name)} could not be reached within "
                        f"{self._rule.deadline_s:.0f} s ({brief_words(error)}); check the network "
                        "and the store, and try again",
                        url=self.url,
                        kind="unreached",
                    ) from error
                logger.warning("%s; trying again", trouble.sentence)
            self.close()
            pause.wait(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def _call(self, name: str, action: Callable[[Any, str], Result]) -> Result:
        fs, root = self._connection()
        path = f"{root.rstrip('/')}/{name}" if name else root
        if self.takes_several:
            return action(fs, path)
        with self._turn:
            return action(fs, path)

    def _connection(self) -> tuple[Any, str]:
        with self._lock:
            if self._connected is None:
                self._connected = _connect(self.url, self._scheme)
            return self._connected

    def _root_of(self, fs: Any) -> str:
        return str(fs._strip_protocol(self.url)).rstrip("/")

    def _full(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url


class _CutShort(OSError):
    """Fewer bytes came than were asked for."""


def store_and_name(url: str) -> tuple[UrlStore, str]:
    """Return the store of the folder that holds a file, and the file's name there."""
    folder, _, name = url.rstrip("/").rpartition("/")
    return UrlStore(folder), name


def _connect(url: str, scheme: str) -> tuple[Any, str]:
    """Open the file system of a scheme; return it and the address in its own words."""
    import fsspec

    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        if scheme in ("s3", "s3a"):
            options["config_kwargs"] = {
                "connect_timeout": 5,
                "read_timeout": 20,
                "retries": {"max_attempts": 1},
            }
        if scheme in ("sftp", "ssh"):
            from phalanx.store.sftp import KnownHostFiles

            given = KnownHostFiles._get_kwargs_from_urls(url)
            return KnownHostFiles(**given), KnownHostFiles._strip_protocol(url)
        if scheme == "hdfs":
            from hdfs_native.fsspec import HdfsFileSystem

            fsspec.register_implementation("hdfs", HdfsFileSystem, clobber=True)
        fs, path = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        package = f"pip install 'phalanx[{extra}]'" if extra else brief_words(error)
        raise SpecError(
            f"{url} needs a package that is not installed: {package}", scheme=scheme
        ) from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise SpecError(f"{url}: no store is known by '{scheme}://'", scheme=scheme) from error
    return fs, str(path)


def _within(limit_s: float, action: Callable[[], Result]) -> Result:
    """Call something in a thread of its own, and leave it behind if it takes too long.

    Libraries of stores have calls that no time-out of theirs ends.
    """
    done = threading.Event()
    outcome: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(action())
        except BaseException as error:  # thread boundary: raised again below
            errors.append(error)
        done.set()

    threading.Thread(target=work, name="phalanx-store", daemon=True).start()
    if not done.wait(limit_s):
        raise TimeoutError(f"no answer within {limit_s:.0f} s")
    if errors:
        raise errors[0]
    return outcome[0]


def _upload_s(size: int) -> float:
    """Return the seconds that an upload may take in one piece: at 1 MB/s."""
    return size / 1e6


def _checked_info(fs: Any, path: str) -> dict[str, Any]:
    fs.invalidate_cache()
    info: dict[str, Any] = fs.info(path)
    if info.get("type") == "directory":
        raise FileNotFoundError(path)
    return info


def _stored(name: str, info: dict[str, Any]) -> StoredObject:
    marks = [info.get(key) for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified")]
    said = "\0".join(str(mark) for mark in (info.get("size"), *marks) if mark is not None)
    return StoredObject(
        name=name, size=int(info["size"]), tag=hashlib.sha256(said.encode()).hexdigest()[:24]
    )


def _below(root: str, path: str) -> str:
    return path[len(root) :].lstrip("/") if path.startswith(root) else path


def _rename(fs: Any, path: str, other: str) -> None:
    rename = getattr(fs, "mv_file", None) or fs.mv
    try:
        rename(path, other)
    except FileExistsError:
        fs.rm_file(other)  # a store whose rename replaces nothing
        rename(path, other)
