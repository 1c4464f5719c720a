"""Expand the axes of a study to cells, each a complete and valid job; pure.

An axis over a setting of the job is a list of values; its labels are abbreviated values. A named
axis is a mapping from labels to settings, several at once where they belong together. Every cell is
validated here, before anything is started.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.errors import SpecError
from phalanx.spec.document import Document, Mark
from phalanx.spec.flow import flow, quoted
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import validate_job
from phalanx.spec.names import did_you_mean
from phalanx.spec.overrides import apply_setting
from phalanx.spec.study_file import StudyFile

# With "-r" and the number of the repeat it must fit into the 80 characters of a job's name.
_MAX_ID = 64
_MAX_CELLS = 10_000
# The study gives these to each run.
_RESERVED = {"name": "the study names its runs", "seed": "list seeds under 'seeds'"}


@dataclass(frozen=True)
class Setting:
    """One setting of a job, and its line in the file."""

    path: str
    value: object
    mark: Mark


@dataclass(frozen=True)
class AxisChoice:
    """One value of an axis."""

    label: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Axis:
    """One dimension of the matrix."""

    name: str
    choices: tuple[AxisChoice, ...]

    @property
    def labels(self) -> list[str]:
        """The labels of its values."""
        return [choice.label for choice in self.choices]


@dataclass(frozen=True)
class StudyCell:
    """One combination of the axes as a job."""

    id: str
    settings: dict[str, str]
    """Axis to label."""
    job: JobSpec


def expand(study: StudyFile) -> tuple[list[Axis], list[StudyCell]]:
    """Return all axes and all cells of a study, in the order of the file.

    Raises:
        SpecError: An axis makes no sense, or a cell is not a valid job; one sentence that names it.
    """
    axes = read_axes(study)
    total = 1
    for axis in axes:
        total *= len(axis.choices)
    if total > _MAX_CELLS:
        mark = study.document.mark(("axes",))
        raise mark.error(f"the axes span {total:,} cells; leave some values out")
    keep = _Filter(study, axes)
    cells: list[StudyCell] = []
    for choices in itertools.product(*(axis.choices for axis in axes)):
        settings = {axis.name: choice.label for axis, choice in zip(axes, choices, strict=True)}
        if keep.takes(settings):
            job = _job(study.job, choices, settings)
            cells.append(StudyCell(_unique_id(settings.values(), cells), settings, job))
    if not cells:
        raise study.document.mark(("axes",)).error("no cell is left by only and exclude")
    return axes, cells


def read_axes(study: StudyFile) -> list[Axis]:
    """Read the axes with their labels and settings.

    Raises:
        SpecError: An axis has no values, a label occurs twice, or two axes set the same thing.
    """
    axes = [_axis(name, values, study.document) for name, values in study.spec.axes.items()]
    if not axes:
        raise study.document.mark(("axes",)).error(
            "axes is empty; name a setting such as 'batch.global'"
        )
    owners: dict[str, str] = {}
    for axis in axes:
        mine = {s.path: s.mark for choice in axis.choices for s in choice.settings}
        for path, mark in mine.items():
            _refuse_reserved(path, mark)
            for other in (known for known in owners if _overlap(known, path)):
                raise mark.error(f"axes '{owners[other]}' and '{axis.name}' both set {path}")
        owners |= dict.fromkeys(mine, axis.name)
    return axes


def label_of(value: object) -> str:
    """Abbreviate a value for tables and file names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        parts = dict(value)
        name = parts.pop("name", None)
        shown = [f"{key}={label_of(part)}" for key, part in parts.items()]
        return " ".join([*([] if name is None else [str(name)]), *shown]) or "default"
    return "none" if value is None else flow(value)


def slug(text: str) -> str:
    """Convert text to a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "x"


def _axis(name: str, values: object, document: Document) -> Axis:
    mark = document.mark(("axes", name))
    choices: list[AxisChoice] = []
    if isinstance(values, list) and values:
        for index, value in enumerate(values):
            at = document.mark(("axes", name, index))
            choices.append(AxisChoice(label_of(value), (Setting(name, value, at),)))
    elif isinstance(values, dict) and values:
        for label, settings in values.items():
            choices.append(_variant(name, label, settings, document))
    else:
        raise mark.error(
            f"axis '{name}' must be a list of values, such as [64, 128], or a mapping from labels "
            f"to settings, not {quoted(values)}",
        )
    labels = [choice.label for choice in choices]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise mark.error(f"axis '{name}' has {twice!r} twice")
    return Axis(name, tuple(choices))


def _variant(axis: str, label: str, settings: object, document: Document) -> AxisChoice:
    mark = document.mark(("axes", axis, label))
    if not isinstance(settings, dict):
        raise mark.error(
            f"'{label}' of axis '{axis}' must be a mapping of settings, such as "
            f"{{strategy: allreduce, workers: 4}}, not {quoted(settings)}",
        )
    found = [
        Setting(path, value, document.mark(("axes", axis, label, path)))
        for path, value in settings.items()
    ]
    return AxisChoice(label, tuple(found))


def _job(base: Document, choices: Sequence[AxisChoice], settings: Mapping[str, str]) -> JobSpec:
    document = Document(copy.deepcopy(base.data), dict(base.marks))
    given = [setting for choice in choices for setting in choice.settings]
    try:
        for order, setting in enumerate(given, start=1):
            path = tuple(setting.path.split("."))
            value = copy.deepcopy(setting.value)
            mark = replace(setting.mark, order=order)
            apply_setting(document, path, value, mark, JobSpec)
        return validate_job(document)
    except SpecError as error:
        where = ", ".join(f"{axis}={label}" for axis, label in settings.items())
        raise SpecError(f"{error} (cell {where})", **error.facts, cell=where) from None


def _unique_id(labels: Iterable[str], cells: Sequence[StudyCell]) -> str:
    name = "_".join(slug(label) for label in labels)[:_MAX_ID].strip("-._") or "cell"
    taken = {cell.id for cell in cells}
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in taken else next(one for one in numbered if one not in taken)


def _refuse_reserved(path: str, mark: Mark) -> None:
    if not path or not all(path.split(".")):
        raise mark.error(f"{quoted(path)} is no setting of a job, such as batch.global")
    if path in _RESERVED:
        raise mark.error(f"'{path}' cannot be an axis: {_RESERVED[path]}")


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


class _Filter:
    """The selection of cells by `only` and `exclude`."""

    def __init__(self, study: StudyFile, axes: Sequence[Axis]) -> None:
        self._axes = {axis.name: axis.labels for axis in axes}
        self._document = study.document
        self._only = self._read("only", study.spec.only)
        self._exclude = self._read("exclude", study.spec.exclude)

    def takes(self, settings: Mapping[str, str]) -> bool:
        agrees = [_agree(settings, rule) for rule in self._only]
        return (any(agrees) or not agrees) and not any(
            _agree(settings, rule) for rule in self._exclude
        )

    def _read(self, key: str, rules: Sequence[Mapping[str, object]]) -> list[dict[str, list[str]]]:
        return [self._rule((key, index), rule) for index, rule in enumerate(rules)]

    def _rule(self, path: tuple[str, int], rule: Mapping[str, object]) -> dict[str, list[str]]:
        found = {}
        for axis, value in rule.items():
            mark = self._document.mark((*path, axis))
            if axis not in self._axes:
                hint = did_you_mean(axis, self._axes)
                raise mark.error(f"there is no axis '{axis}'{hint} ({', '.join(self._axes)})")
            wanted = [label_of(item) for item in (value if isinstance(value, list) else [value])]
            for label in wanted:
                if label not in self._axes[axis]:
                    known = ", ".join(self._axes[axis])
                    raise mark.error(f"axis '{axis}' has no label {label!r} ({known})")
            found[axis] = wanted
        return found


def _agree(settings: Mapping[str, str], rule: Mapping[str, Sequence[str]]) -> bool:
    return all(settings[axis] in labels for axis, labels in rule.items())
