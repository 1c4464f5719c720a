"""Copy run directories to a store by URL, and back: whole, verified, replaced at once.

    <url>/<run>/run.json               the files of the copy, with their sizes and digests
    <url>/<run>/files/<digest>-<name>  their contents

The list is replaced last, in one step, so a reader sees the copy of one moment, and a copy that
broke off leaves the one before. What is there already is not sent again. Called by commands.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from pathlib import Path, PurePosixPath

import msgspec

from phalanx.errors import SpecError, StoreError
from phalanx.records.owner import LOCK
from phalanx.records.rundir import RunDir
from phalanx.spec.urls import join_url, last_name
from phalanx.store.url_store import Progress, UrlStore

_LIST = "run.json"
_FILES = "files"
_LEFT_OUT = (LOCK, "workers.request")
_READ_BYTES = 1 << 20


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a run."""

    size: int
    sha256: str
    stored: str
    """Its name in the store."""


class RunCopy(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy of a run holds."""

    run: str
    state: str
    files: dict[str, CopiedFile]
    version: int = 1

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(one.size for one in self.files.values())


def copy_run(run: RunDir, url: str, on_progress: Progress | None = None) -> RunCopy:
    """Copy a run that is not running to `<url>/<name of the run>`, in place of an older copy.

    Raises:
        SpecError: The run is running.
        StoreError: The store cannot be written; an older copy there is as it was.
    """
    status = run.read_status()
    if status.state == "running":
        raise SpecError(f"run {run.name} is still running; copy it when it has ended")
    store = UrlStore(join_url(url, run.name))
    try:
        found = RunCopy(run=run.name, state=status.state, files=_files_of(run))
        there = {one.name: one.size for one in store.list()}
        done = 0
        for name, file in found.files.items():
            if there.get(file.stored) != file.size:
                store.put(run.path / name, file.stored)
            done += file.size
            if on_progress is not None:
                on_progress(run.name, done, found.num_bytes)
        store.write(_LIST, msgspec.json.encode(found))
        wanted = {file.stored for file in found.files.values()}
        for name in there:
            if name.startswith(f"{_FILES}/") and name not in wanted:
                store.delete(name)
        return found
    finally:
        store.close()


def fetch_run(url: str, root: Path, on_progress: Progress | None = None) -> RunDir:
    """Copy a run from a store into a directory of runs; one that is there and equal is kept.

    Raises:
        SpecError: No run is there, or another one of this name is here.
        StoreError: The store cannot be read, or a file is damaged; nothing is left here.
    """
    store = UrlStore(url)
    try:
        listed = _listed(store)
        target = root / listed.run
        if target.exists():
            if all(_is_same(target / name, file) for name, file in listed.files.items()):
                return RunDir.open(target)
            raise SpecError(
                f"{target} is here already and differs from {url}; use it by its name, "
                f"{listed.run}, or fetch the copy into another directory with --runs"
            )
        temporary = root / f".{listed.run}.{uuid.uuid4().hex}"
        try:
            _fetch_files(store, listed, temporary, on_progress)
            temporary.rename(target)
        except OSError as error:
            raise StoreError(f"cannot write {target} ({error.strerror or error})") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return RunDir.open(target)
    finally:
        store.close()


def _listed(store: UrlStore) -> RunCopy:
    try:
        found = msgspec.json.decode(store.read(_LIST), type=RunCopy)
    except StoreError as error:
        if error.facts.get("kind") != "missing":
            raise
        raise SpecError(
            f"{store.url} holds no copy of a run; name one that `phalanx runs copy` made, as "
            "s3://bucket/runs/NAME"
        ) from error
    except msgspec.DecodeError as error:
        raise StoreError(f"{store.url}/{_LIST} is damaged ({error}); copy the run again") from error
    for name in (found.run, *found.files):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or not name:
            raise StoreError(f"{store.url}/{_LIST} names a file '{name}', which no run has")
    if found.run != last_name(store.url):
        raise SpecError(f"{store.url} is a copy of run {found.run}; give its address that name")
    return found


def _fetch_files(
    store: UrlStore, listed: RunCopy, folder: Path, on_progress: Progress | None
) -> None:
    done = 0
    for name, file in listed.files.items():
        path = folder / name
        store.fetch(file.stored, path)
        if not _is_same(path, file):
            raise StoreError(
                f"{store.url}/{file.stored} is damaged: its digest is another than that of {name}; "
                "copy the run again"
            )
        done += file.size
        if on_progress is not None:
            on_progress(listed.run, done, listed.num_bytes)
    for part in ("events", "logs", "checkpoints"):
        (folder / part).mkdir(parents=True, exist_ok=True)


def _files_of(run: RunDir) -> dict[str, CopiedFile]:
    found = {}
    for path in sorted(run.path.rglob("*")):
        name = path.relative_to(run.path).as_posix()
        # Hidden files are being written, or were when a process ended.
        if path.is_file() and name not in _LEFT_OUT and not path.name.startswith("."):
            digest = _digest(path)
            found[name] = CopiedFile(
                size=path.stat().st_size,
                sha256=digest,
                stored=f"{_FILES}/{digest[:16]}-{path.name}",
            )
    return found


def _is_same(path: Path, file: CopiedFile) -> bool:
    try:
        return path.stat().st_size == file.size and _digest(path) == file.sha256
    except OSError:
        return False


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
