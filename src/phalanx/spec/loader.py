"""Load a `JobSpec` from a file or mapping: read, override, validate, report what is wrong.

Called by `api`, `cli` and the loader of studies. Whether data, models and machines exist is not
checked here: the job may be meant for other machines than this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from phalanx.errors import SpecError
from phalanx.spec.data import is_path
from phalanx.spec.document import Document, from_mapping, read
from phalanx.spec.file_kinds import refuse_other_kind
from phalanx.spec.job import JobSpec
from phalanx.spec.messages import validated
from phalanx.spec.overrides import apply_overrides
from phalanx.spec.registry import IMPORT_PATH

_SUCH_AS = "such as 'model: mnist-cnn'"


def load_job(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job file.

    Args:
        path: A YAML file.
        overrides: `path=value` settings that win over the file, such as `optimizer.lr=0.05`.

    Raises:
        SpecError: One sentence with file, line, value and what would be right.
    """
    return validate_job(read_job(path), overrides)


def read_job(path: str | os.PathLike[str]) -> Document:
    """Read a job file without validating its settings.

    Raises:
        SpecError: The file is missing, not YAML, or holds no settings by name.
    """
    document = read(Path(path))
    if document.data is None:
        raise SpecError(
            f"{path}: the file is empty; write at least one setting, {_SUCH_AS}", file=str(path)
        )
    if not isinstance(document.data, dict):
        kind = "a list" if isinstance(document.data, list) else "a single value"
        raise SpecError(
            f"{document.mark(())}: the file holds {kind}; a job is settings by name, {_SUCH_AS}",
            file=str(path),
            line=document.mark(()).line,
        )
    refuse_other_kind(document.data, str(path), "job")
    locate_paths(document.data, Path(path).parent)
    return document


def locate_paths(job: dict[str, object], folder: Path) -> None:
    """Resolve a job's paths against the folder of its file; changes `job` in place.

    Data and modules that lie beside the file are found from anywhere; what does not is left to be
    looked for where `phalanx` is called, and in the data directory.
    """
    folders = job.get("python_path")
    if isinstance(folders, list) and all(isinstance(one, str) for one in folders):
        job["python_path"] = [str(folder / one) for one in folders]
    if folder.resolve() == Path.cwd():
        return
    data = job.get("data")
    name = data.get("name") if isinstance(data, dict) else data
    if isinstance(name, str) and is_path(name) and (folder / name).exists():
        absolute = str((folder / name).resolve())
        job["data"] = {**data, "name": absolute} if isinstance(data, dict) else absolute
    if folders is None and any(_is_beside(one, folder) for one in _texts(job)):
        job["python_path"] = [str(folder)]


def _is_beside(text: str, folder: Path) -> bool:
    """Tell whether `package.module:name` is in a folder."""
    if not IMPORT_PATH.match(text):
        return False
    top = text.partition(":")[0].partition(".")[0]
    return (folder / f"{top}.py").is_file() or (folder / top).is_dir()


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def job_from_mapping(mapping: Mapping[str, object], overrides: Sequence[str] = ()) -> JobSpec:
    """Build a job from Python values, with the same checks and messages as for a file.

    Args:
        mapping: What a job file would hold; may contain specs, and is not changed.
        overrides: `path=value` settings that win over the mapping.

    Raises:
        SpecError: One sentence with setting, value and what would be right.
    """
    return validate_job(from_mapping(mapping), overrides)


def validate_job(document: Document, overrides: Sequence[str] = ()) -> JobSpec:
    """Lay overrides over a document and turn it into a job.

    Raises:
        SpecError: One sentence with place, value and what would be right.
    """
    apply_overrides(document, overrides, JobSpec)
    return validated(document, JobSpec)
