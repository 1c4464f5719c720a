"""List runs, studies and plans below some directories; a look again reads what has changed.

Entries are known by an id that follows from their path, so that no name of a file, which anybody
may have chosen, is part of an address.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from phalanx.errors import PhalanxError, SpecError, printable
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir
from phalanx.records.study import JOURNAL, MANIFEST, StudyDir, is_study

_MANIFEST = "manifest.json"
UNREADABLE = (PhalanxError, OSError, LookupError, TypeError, ValueError, msgspec.MsgspecError)
"""What reading a directory may raise that is torn, of another version, or made to do harm."""
Stamp = tuple[int, int, int] | None


class LibraryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    id: str
    kind: Literal["run", "study", "plan"]
    name: str
    path: Path
    state: str
    detail: str = ""
    """Strategy of a run, progress of a study."""
    task: str = ""
    workers: int | None = None
    epochs: int | None = None
    accuracy: float | None = None
    """Of the test part."""
    loss: float | None = None
    samples_per_s: float | None = None
    elapsed_s: float | None = None
    started: str = ""
    study: str = ""
    """Name of the study that a run is a trial of."""


def file_stamp(path: Path) -> Stamp:
    """Return what changes when a file is replaced or appended to; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def id_of(path: Path) -> str:
    """Return the id of a run, study or plan."""
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]


class Library:
    """Everything that a dashboard shows.

    Args:
        sources: Directories of runs or studies, run and study directories, plan files.
    """

    def __init__(self, sources: Sequence[Path]) -> None:
        self._sources = [path.absolute() for path in sources]
        self._known: dict[Path, tuple[tuple[Stamp, ...], LibraryEntry]] = {}
        self._entries: dict[str, LibraryEntry] = {}

    def find(self, id: str) -> LibraryEntry:
        """Return an entry by its id.

        Raises:
            SpecError: There is none.
        """
        if id not in self._entries:
            # An address that was kept, or a run that has just begun.
            self.scan()
        if id not in self._entries:
            raise SpecError("there is no such run, study or plan here")
        return self._entries[id]

    def scan(self) -> dict[str, LibraryEntry]:
        """Look at all directories again; newest first."""
        found = [entry for source in self._sources for entry in self._below(source)]
        found.sort(key=lambda one: one.started, reverse=True)
        self._entries = {one.id: one for one in found}
        present = {one.path for one in found}
        self._known = {path: one for path, one in self._known.items() if path in present}
        return self._entries

    def _below(self, path: Path, *, study: str = "", depth: int = 1) -> Iterator[LibraryEntry]:
        if path.is_file():
            yield self._entry(path, "plan", (file_stamp(path),))
        elif (path / _MANIFEST).is_file():
            yield from self._run(path, study)
        elif is_study(path):
            yield self._entry(path, "study", _stamps(path, MANIFEST, JOURNAL))
            for run in _folders(path / "runs"):
                if (run / _MANIFEST).is_file():
                    yield from self._run(run, path.name)
        elif depth:
            for folder in _folders(path):
                yield from self._below(folder, study=study, depth=depth - 1)

    def _run(self, path: Path, study: str) -> Iterator[LibraryEntry]:
        stamps = _stamps(path, _MANIFEST, "status.json", "summary.json")
        yield self._entry(path, "run", stamps, study=study)

    def _entry(
        self,
        path: Path,
        kind: Literal["run", "study", "plan"],
        stamps: tuple[Stamp, ...],
        *,
        study: str = "",
    ) -> LibraryEntry:
        known = self._known.get(path)
        # Whether a controller still runs is in no file.
        if known is not None and known[0] == stamps and known[1].state != "running":
            return known[1]
        try:
            entry = _READERS[kind](path, study)
        except UNREADABLE as error:
            # Whatever is wrong with one directory, the others are shown.
            entry = LibraryEntry(
                id=id_of(path),
                kind=kind,
                name=printable(path.name),
                path=path,
                state="unreadable",
                detail=printable(str(error))[:200],
            )
        self._known[path] = stamps, entry
        return entry


def _stamps(path: Path, *names: str) -> tuple[Stamp, ...]:
    return tuple(file_stamp(path / name) for name in names)


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as found:
            return sorted(Path(one.path) for one in found if one.is_dir())
    except OSError:
        return []


def _time_of(path: Path) -> str:
    modified = datetime.fromtimestamp(path.stat().st_mtime)
    return modified.isoformat(sep=" ", timespec="seconds")


def _read_run(path: Path, study: str) -> LibraryEntry:
    run = RunDir(path)
    job: dict[str, Any] = read_manifest(run).job
    strategy, status, summary = job["strategy"], run.read_status(), run.read_summary()
    return LibraryEntry(
        id=id_of(path),
        kind="run",
        name=printable(run.name),
        path=path,
        state=status.state,
        detail=printable(str(strategy["name"])),
        task=printable(f"{job['model']['name']} on {job['data']['name']}"),
        workers=int(job["workers"]),
        epochs=summary.epochs if summary else int(job["epochs"]),
        accuracy=summary.test_accuracy if summary else None,
        loss=summary.test_loss if summary else None,
        samples_per_s=summary.samples_per_s if summary else None,
        elapsed_s=summary.elapsed_s if summary else None,
        started=_time_of(path / _MANIFEST),
        study=printable(study),
    )


def _read_study(path: Path, _: str) -> LibraryEntry:
    study = StudyDir(path)
    manifest, trials = study.manifest(), study.trials()
    least = sum(manifest.repeats_of(cell.id).min for cell in manifest.cells)
    failed = sum(trial.state == "failed" for trial in trials)
    return LibraryEntry(
        id=id_of(path),
        kind="study",
        name=printable(path.name),
        path=path,
        state="finished" if len(trials) >= least else "unfinished",
        detail=f"{len(trials)} of {least} runs" + (f", {failed} failed" if failed else ""),
        task=printable(manifest.title),
        started=_time_of(path / MANIFEST),
    )


def _read_plan(path: Path, _: str) -> LibraryEntry:
    return LibraryEntry(
        id=id_of(path),
        kind="plan",
        name=printable(path.name),
        path=path,
        state="",
        started=_time_of(path),
    )


_READERS = {"run": _read_run, "study": _read_study, "plan": _read_plan}
