"""Load a `StudySpec` from a file or mapping; the base job stays a separate document.

The job is not validated here: it is complete only when the axis values of a cell are applied to it.
Its document keeps the lines, so that errors in a cell are reported at their place in the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import SpecError
from phalanx.spec.document import Document, Mark, from_mapping, parse, read_settings
from phalanx.spec.file_kinds import refuse_other_kind
from phalanx.spec.flow import quoted
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import locate_paths, read_job
from phalanx.spec.messages import validated
from phalanx.spec.overrides import apply_overrides, apply_setting
from phalanx.spec.study import StudySpec

_JOB = "job."
_AXES = "axes."


@dataclass(frozen=True)
class StudyFile:
    """A study, with the positions of its settings."""

    spec: StudySpec
    document: Document
    """The file without its job."""
    job: Document
    """Base job of all cells."""
    folder: Path
    """Paths in the file are relative to this folder."""


def load_study(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> StudyFile:
    """Read a study file.

    Args:
        path: A YAML file.
        overrides: `path=value` settings that win over the file: `repeats=5`, `job.epochs=2`,
            `axes.batch.global=[64, 128]`.

    Raises:
        SpecError: One sentence with file, line, value and what would be right.
    """
    file = Path(path)
    such_as = "a study is settings by name, such as 'study: my-study' and 'axes: ...'"
    document = read_settings(file, such_as)
    assert isinstance(document.data, dict)
    refuse_other_kind(document.data, str(file), "study")
    return _built(document, file.parent, overrides)


def study_from_mapping(
    mapping: Mapping[str, object], overrides: Sequence[str] = (), folder: Path = Path()
) -> StudyFile:
    """Build a study from Python values, with the same checks and messages as for a file.

    Raises:
        SpecError: One sentence with setting, value and what would be right.
    """
    return _built(from_mapping(mapping), folder, overrides)


def _built(document: Document, folder: Path, overrides: Sequence[str]) -> StudyFile:
    assert isinstance(document.data, dict)
    _take_axis_overrides(document, [text for text in overrides if text.startswith(_AXES)])
    own = [text for text in overrides if not text.startswith((_JOB, _AXES))]
    apply_overrides(document, own, StudySpec)
    job = _base_job(document, folder)
    for_job = [text.removeprefix(_JOB) for text in overrides if text.startswith(_JOB)]
    apply_overrides(job, for_job, JobSpec)
    spec = validated(Document(document.data | {"job": job.data}, document.marks), StudySpec)
    return StudyFile(spec=spec, document=document, job=job, folder=folder)


def _take_axis_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Set whole axes; the name of an axis contains dots, so it is one key of the path."""
    assert isinstance(document.data, dict)
    for order, text in enumerate(overrides, start=1):
        mark = Mark(f"--set {text}", order=order)
        name, equals, value = text.removeprefix(_AXES).partition("=")
        if not equals or not isinstance(document.data.get("axes", {}), dict):
            raise SpecError(f"{mark}: an axis is set as a whole, such as axes.batch.global=[64]")
        given = parse(value, mark.source, with_lines=False).data
        apply_setting(document, ("axes", name.strip()), given, mark, StudySpec)


def _base_job(document: Document, folder: Path) -> Document:
    assert isinstance(document.data, dict)
    given = document.data.get("job")
    mark = document.mark(("job",))
    if given is None:
        return Document({})
    if isinstance(given, str):
        return read_job(folder / given)
    if isinstance(given, dict):
        locate_paths(given, folder)
        return document.part("job")
    where = f"{mark}: " if mark.source else ""
    raise SpecError(
        f"{where}job must be a mapping or the path of a job file, not {quoted(given)}",
        file=mark.source,
        line=mark.line,
    )
