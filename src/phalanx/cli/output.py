"""Print what a command has to show as text, Markdown, CSV or JSON.

The only renderer of tables for terminals. Commands describe tables as `report.document` does, with
a raw value behind every text, and get all four formats from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from rich import table as rich_table
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text as RichText

from phalanx.cli.options import Format
from phalanx.cli.screen import BAR_DONE_STYLE, WARNING_STYLE, open_console
from phalanx.report.document import Block, Figure, Table, line
from phalanx.report.table_formats import blocks_markdown, table_csv

T = TypeVar("T")

_GAP = 2
_WIDEST_WORD = 24
_KINDS = {
    "paragraph": "",
    "list": "",
    "lead": "bold",
    "heading": "bold",
    "doubt": WARNING_STYLE,
    "good": BAR_DONE_STYLE,
    "note": "dim",
}
_MARKS = {"": "", "best": "bold", "good": BAR_DONE_STYLE, "doubt": WARNING_STYLE, "weak": "dim"}


def show(
    blocks: Callable[[], Iterable[Block]], *, facts: Callable[[], object], form: Format
) -> None:
    """Print a result on standard output.

    CSV holds the tables among the blocks, with an empty line between two; JSON the facts, whose
    keys are part of the command's interface.
    """
    if form == "json":
        print_json(facts())
    elif form == "csv":
        tables = (block for block in blocks() if isinstance(block, Table))
        sys.stdout.write("\n".join(table_csv(table) for table in tables))
    elif form == "markdown":
        sys.stdout.write(blocks_markdown(blocks()))
    else:
        print_blocks(open_console(), blocks())


def show_list(
    found: Sequence[T], table: Callable[[Sequence[T]], Block], *, form: Format, if_none: str
) -> None:
    """Print what a `list` command has found; a hint instead of an empty table of text."""
    if not found and form == "text":
        show(lambda: [line(if_none)], facts=list, form=form)
    else:
        show(lambda: [table(found)], facts=lambda: found, form=form)


def print_json(value: object) -> None:
    """Print one JSON object on one line of standard output."""
    print(msgspec.json.encode(value).decode())


def print_blocks(console: Console, blocks: Iterable[Block]) -> None:
    """Print blocks on a terminal; figures are left to pages."""
    for block in blocks:
        if isinstance(block, Table):
            if block.caption:
                console.print(RichText(block.caption), soft_wrap=True)
            console.print(render_table(block, width=console.width))
        elif not isinstance(block, Figure):
            for line in block.lines:
                bullet = "- " if block.kind == "list" else ""
                gap = "\n" if block.kind == "heading" else ""
                text = RichText(f"{gap}{bullet}{line}", _KINDS[block.kind])
                console.print(text, soft_wrap=True)


def render_table(table: Table, *, width: int) -> rich_table.Table:
    """Render a table for a terminal of so many columns.

    Columns that may be left out are, the least important first, until the rest fits.
    """
    kept = _kept_columns(table, width)
    header_lines = max((table.columns[index].title.count("\n") for index in kept), default=0)
    rendered = rich_table.Table(
        box=None, padding=(0, _GAP, 0, 0), header_style="dim", show_header=table.has_header
    )
    for index in kept:
        column = table.columns[index]
        title = f"{column.title}, {column.unit}" if column.unit else column.title
        # Titles of one line stand beside the last line of longer ones.
        title = "\n" * (header_lines - title.count("\n")) + title
        rendered.add_column(
            RichText(title),
            justify="left" if column.is_text or column.joins else "right",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
            # A row whose name is cut off answers nothing.
            min_width=_least_width(table, index) if index == kept[0] or column.wraps else None,
            style="" if table.has_header or index else "dim",
        )
    for row in table.rows:
        rendered.add_row(*(RichText(row[index].text, _MARKS[row[index].mark]) for index in kept))
    return rendered


def _least_width(table: Table, index: int) -> int:
    """Return the width below which a column loses text: its longest line, or word if it wraps."""
    column = table.columns[index]
    texts = [*column.title.splitlines(), *(row[index].text for row in table.rows)]
    if column.wraps:
        texts = [word for one in texts for word in one.split()]
    widest = max([0, *map(cell_len, texts)])
    # A path or a list without spaces may be broken anywhere.
    return min(widest, _WIDEST_WORD) if column.wraps else widest


def _kept_columns(table: Table, width: int) -> list[int]:
    widths = [_least_width(table, index) for index in range(len(table.columns))]
    kept = list(range(len(table.columns)))
    while sum(widths[index] + _GAP for index in kept) > width:
        ranked = [(table.columns[i].keep, i) for i in kept if table.columns[i].keep is not None]
        if not ranked:
            break
        kept.remove(min(ranked)[1])
    return kept
