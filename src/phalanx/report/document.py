"""Define the blocks of reports and commands: sections, text, tables, figures; plain data.

Pages, Markdown, CSV and the terminal are rendered from the same blocks, so they cannot disagree. A
value keeps the number it was made from: people read the text, programs the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

NOTHING = "\N{EN DASH}"
"""Shown for a missing value."""
MINUS = "\N{MINUS SIGN}"

Mark = Literal["", "best", "good", "doubt", "weak"]
Raw = str | float | int | bool | tuple[float | None, float | None] | None
"""Value for programs; an interval becomes two columns."""


class Value(msgspec.Struct, frozen=True):
    """One entry of a table."""

    text: str
    raw: Raw = None
    mark: Mark = ""
    """best: of its column; good: passed; doubt: to be checked; weak: not reliable."""


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    key: str
    """Its name in CSV files, with the unit of the raw numbers."""
    title: str
    unit: str = ""
    is_text: bool = False
    joins: bool = False
    """Continues the column before it, such as ± after a mean."""
    wraps: bool = False
    """May be broken into lines on a narrow terminal; other columns never are."""
    keep: int | None = None
    """Columns with the lowest number are left out first where a terminal is too narrow for all;
    None: never."""


class Table(msgspec.Struct, kw_only=True):
    """Rows of values with one caption."""

    id: str
    caption: str
    columns: list[Column]
    rows: list[list[Value]]
    has_header: bool = True
    """False: names and values, which need no header on a terminal."""


class Swatch(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a legend."""

    label: str
    colour: str
    dash: tuple[int, ...] = ()
    shape: str = ""
    """Of points: circle, square, triangle, diamond, cross; empty: a plain field or line."""
    is_field: bool = False


class Panel(msgspec.Struct, kw_only=True):
    """One chart of a figure."""

    title: str
    spec: dict[str, Any]
    """Vega-Lite, data included."""


class Figure(msgspec.Struct, kw_only=True):
    """Charts that share a caption and a legend."""

    id: str
    caption: str
    panels: list[Panel]
    legend: list[Swatch] = []


Kind = Literal["paragraph", "list", "lead", "heading", "doubt", "good", "note"]


class Text(msgspec.Struct, kw_only=True):
    """Lines of prose of one kind."""

    lines: list[str]
    kind: Kind = "paragraph"


Block = Text | Table | Figure


class Section(msgspec.Struct, kw_only=True):
    """One chapter."""

    id: str
    title: str
    blocks: list[Block]
    folded: bool = False
    """A page shows only its title until the reader opens it."""


class Report(msgspec.Struct, kw_only=True):
    """The whole report."""

    title: str
    subtitle: str
    advice: list[str]
    """The recommendation, task by task."""
    sections: list[Section]

    def tables(self) -> list[Table]:
        """Return all tables, in order."""
        return [b for section in self.sections for b in section.blocks if isinstance(b, Table)]

    def figures(self) -> list[Figure]:
        """Return all figures, in order."""
        return [b for section in self.sections for b in section.blocks if isinstance(b, Figure)]


Entries = dict[Column, Value]
"""One row of a table, by column."""
Row = TypeVar("Row")
CellFormat = Callable[[Row], Value]


def tabulate(
    id: str,
    rows: Iterable[Row],
    columns: Sequence[tuple[Column, CellFormat[Row]]],
    caption: str = "",
) -> Table:
    """Make a table of records from a list of columns, each with the function that fills it."""
    return Table(
        id=id,
        caption=caption,
        columns=[column for column, _ in columns],
        rows=[[cell(row) for _, cell in columns] for row in rows],
    )


def table_of(id: str, caption: str, rows: Iterable[Entries]) -> Table:
    """Make a table of rows that name their columns; all have those of the first."""
    found = list(rows)
    columns = list(found[0]) if found else []
    cells = [[row[column] for column in columns] for row in found]
    return Table(id=id, caption=caption, columns=columns, rows=cells)


def label(key: str, title: str = "") -> Column:
    """Make a column of words; its title is the key unless another is given."""
    return Column(key, title or key, is_text=True)


def line(content: str, kind: Kind = "paragraph") -> Text:
    """Make a block of one line."""
    return Text(lines=[content], kind=kind)


def text(value: Raw, mark: Mark = "") -> Value:
    """Make an entry of words."""
    shown = NOTHING if value is None or value == "" else str(value)
    return Value(shown, value, mark)


def number(value: float | None, digits: int, *, scale: float = 1.0, mark: Mark = "") -> Value:
    """Make an entry with a fixed number of decimals."""
    return Value(plain(value, digits, scale=scale), value, mark)


def signed(value: float | None, digits: int, *, scale: float = 1.0, mark: Mark = "") -> Value:
    """Make an entry of a difference, always with its sign."""
    return Value(plain(value, digits, scale=scale, sign="+"), value, mark)


def plus_minus(value: float | None, digits: int, *, scale: float = 1.0) -> Value:
    """Make an entry of half an interval; empty where there is no interval."""
    shown = "" if value is None else f"± {plain(value, digits, scale=scale)}"
    return Value(shown, value)


def span(
    low: float | None, high: float | None, digits: int, *, scale: float = 1.0, sign: str = ""
) -> Value:
    """Make an entry with both ends of an interval."""
    ends = [plain(end, digits, scale=scale, sign=sign) for end in (low, high)]
    return Value(NOTHING if NOTHING in ends else " to ".join(ends), (low, high))


def p_text(p: float | None) -> str:
    """Format a p-value."""
    return NOTHING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def plain(value: float | None, digits: int, *, scale: float = 1.0, sign: str = "") -> str:
    """Format a number with thousands separators and a true minus sign; a zero has no sign."""
    if value is None:
        return NOTHING
    shown = f"{value * scale:{sign},.{digits}f}"
    if not any(digit in shown for digit in "123456789"):
        shown = shown.lstrip("+-")
    return shown.replace("-", MINUS)


def pairs_table(
    id: str,
    caption: str,
    pairs: Mapping[str, Raw] | Iterable[tuple[str, Raw]],
    *,
    has_header: bool = True,
) -> Table:
    """Make a table of names and values."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return Table(
        id=id,
        caption=caption,
        columns=[Column("name", "setting", is_text=True), Column("value", "value", is_text=True)],
        rows=[[text(name), text(value)] for name, value in items],
        has_header=has_header,
    )


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
