"""Tell job, study and pool files apart: a file in the wrong place is named as what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from phalanx.errors import SpecError

FileKind = Literal["job", "study", "pool"]

# Keys that only a file of this kind has; a file without any of them is taken for a job.
_MARKS: dict[FileKind, tuple[str, ...]] = {
    "study": ("study", "axes"),
    "pool": ("machines", "inventory", "scheduler"),
}
_USES: dict[FileKind, str] = {
    "job": "train it with `phalanx train {file}`",
    "study": "run it with `phalanx study run {file}`",
    "pool": "name it with `--pool {file}`",
}


def refuse_other_kind(data: Mapping[str, object], file: str, wanted: FileKind) -> None:
    """Refuse a file that clearly is of another kind than the one wanted here.

    Raises:
        SpecError: Says what the file is, and which command takes it.
    """
    found: FileKind = next(
        (kind for kind, marks in _MARKS.items() if any(mark in data for mark in marks)), "job"
    )
    # An empty mapping, or one of misspelt keys, may be any kind: its keys get the message.
    is_clear = found != "job" or {"model", "data", "optimizer", "workers", "epochs"} & data.keys()
    if found != wanted and is_clear:
        use = _USES[found].format(file=file)
        raise SpecError(f"{file}: this is a {found} file, not a {wanted} file; {use}", file=file)
