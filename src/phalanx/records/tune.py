"""Read and write the files of a search in its study directory.

    <study>/
      tune.json    settings of the search, and the job as it was given
      job.yaml     the job with the share that was found, once the search is over

Which share is tried next follows from these and the journal. Written by `study`, read by `cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from phalanx.errors import SpecError, StoreError
from phalanx.records.rundir import encode_pretty, read_record
from phalanx.records.study import StudyDir
from phalanx.store.atomic import write_atomically

TUNE = "tune.json"
FOUND_JOB = "job.yaml"


class TuneManifest(msgspec.Struct, kw_only=True):
    """Settings and job of a search."""

    job: dict[str, Any]
    """The settings of the job file, with changes of the command line."""
    method: str
    """binary or halving."""
    runs: int
    tolerance: float
    max_settings: int
    metric: str
    """The accuracy that is compared."""


def write_tune(path: Path, tune: TuneManifest) -> None:
    """Write the settings of a search; creates the directory if needed.

    Raises:
        StoreError: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create {path}: {error.strerror}; choose another place with --to",
            path=str(path),
        ) from error
    write_atomically(path / TUNE, encode_pretty(tune))


def read_tune(study: StudyDir) -> TuneManifest:
    """Read the settings of the search in a study directory.

    Raises:
        SpecError: It holds no search.
        StoreError: It cannot be read.
    """
    if not (study.path / TUNE).exists():
        raise SpecError(
            f"{study.path} is no search: it has no {TUNE}; studies are resumed by "
            f"`phalanx study resume {study.path}`"
        )
    return read_record(study.path / TUNE, TuneManifest)
