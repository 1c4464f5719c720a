"""Describe published results as data beside a study.

A file names its source, each measure with our counterpart, and tables of figures by the labels of
the study's axes. A misprinted figure carries the printed and the corrected value, with the reason.
`chapter` shows them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from phalanx.errors import SpecError
from phalanx.spec.base import ListOf, Spec
from phalanx.spec.document import read_settings
from phalanx.spec.messages import validated


class MeasureSpec(Spec):
    """Measure of published figures."""

    title: str
    """Name in tables."""
    unit: str = ""
    """Such as s, % or GB; empty for shares of 1 and for ratios."""
    ours: str | None = None
    """Our measure to compare with, such as train_s; null: there is none."""
    note: str = ""
    """What the source leaves undefined."""


class FigureSpec(Spec):
    """One published number."""

    value: float | None
    """The number, corrected where it was wrong; null if no right value can be known."""
    printed: float | str | None = None
    """What the source prints, where that is something else."""
    low: float | None = None
    """The smallest value seen, where the source gives a range."""
    high: float | None = None
    """The greatest."""
    note: str = ""
    """Why it was corrected, or what is odd about it."""

    @property
    def is_corrected(self) -> bool:
        """Whether the source prints something else."""
        return self.printed is not None and self.printed != self.value


def _bare_number(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"value": value} if number else value


Figure = Annotated[FigureSpec, BeforeValidator(_bare_number)]


class RowSpec(Spec):
    """The figures of one cell."""

    settings: dict[str, str]
    """Axis to label, as in the study; an axis that is left out does not matter."""
    values: dict[str, Figure]
    """Measure to number."""


class TableSpec(Spec):
    """Figures that the source prints together."""

    title: str
    """What the table shows."""
    where: str = ""
    """Where the source prints it."""
    note: str = ""
    """What holds for all of it."""
    rows: ListOf[RowSpec]
    """One per cell."""


class CurveSpec(Spec):
    """One measure after every epoch of one cell."""

    settings: dict[str, str]
    """Axis to label, as in the study."""
    measure: str
    """Which measure."""
    where: str = ""
    """Where the source prints it."""
    values: ListOf[Figure]
    """After epoch 1, 2, ..."""


class ClaimSpec(Spec):
    """A statement of the source that its own tables bear out or not."""

    text: str
    """What the source says."""
    holds: bool | None
    """Whether its own figures say the same; null: they cannot tell."""
    note: str = ""
    """What they say instead."""
    where: str = ""
    """Where the source says it."""


class PublishedSpec(Spec):
    """What a source has published about a study."""

    source: str
    """Author, title, place, year."""
    setup: str = ""
    """Machines, software and roles in a sentence or two."""
    missing: ListOf[str] = ()
    """What the source does not say."""
    measures: dict[str, MeasureSpec]
    """Short name to meaning."""
    tables: ListOf[TableSpec] = ()
    """Figures by cell."""
    curves: ListOf[CurveSpec] = ()
    """Figures by cell and epoch."""
    claims: ListOf[ClaimSpec] = ()
    """What the source concludes."""

    @property
    def corrections(self) -> list[FigureSpec]:
        """Every figure that differs from what was printed."""
        in_tables = [
            figure for table in self.tables for row in table.rows for figure in row.values.values()
        ]
        in_curves = [figure for curve in self.curves for figure in curve.values]
        return [figure for figure in (*in_tables, *in_curves) if figure.is_corrected]


def load_published(path: str | os.PathLike[str]) -> PublishedSpec:
    """Read a file of published figures.

    Raises:
        SpecError: One sentence with file, line, value and what would be right.
    """
    such_as = "published figures are settings by name, such as 'source: ...'"
    published = validated(read_settings(Path(path), such_as), PublishedSpec)
    _check_measures(published, str(path))
    return published


def _check_measures(published: PublishedSpec, path: str) -> None:
    used = {name for table in published.tables for row in table.rows for name in row.values}
    used |= {curve.measure for curve in published.curves}
    unknown = sorted(used - published.measures.keys())
    if unknown:
        raise SpecError(
            f"{path}: {', '.join(repr(name) for name in unknown)} is not among the measures "
            f"({', '.join(published.measures)}); say what it means there",
            file=path,
        )
