"""Write tables and reports as CSV, Markdown or records; the terminal's form is in `cli.output`.

CSV and records hold the raw values with all digits, an interval as two columns; Markdown holds the
formatted text, and figures by their captions.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from phalanx.report.document import Block, Figure, Raw, Report, Table, Text, Value

_SPECIAL = str.maketrans({"|": "\\|", "*": "\\*", "_": "\\_", "<": "&lt;", ">": "&gt;"})


def table_csv(table: Table) -> str:
    """Write a table as CSV with one header line."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_keys(table))
    for row in table.rows:
        writer.writerow(repr(raw) if isinstance(raw, float) else raw for raw in _raws(table, row))
    return out.getvalue()


def table_records(table: Table) -> list[dict[str, Raw]]:
    """Return the rows of a table as mappings from column keys to raw values."""
    keys = _keys(table)
    return [dict(zip(keys, _raws(table, row), strict=True)) for row in table.rows]


def table_markdown(table: Table) -> str:
    """Write a table as Markdown, below its caption if it has one."""
    head = " | ".join(
        escape_markdown(f"{column.title}, {column.unit}".removesuffix(", "))
        for column in table.columns
    )
    rule = " | ".join(
        ":---" if column.is_text or column.joins else "---:" for column in table.columns
    )
    rows = [" | ".join(_entry(value) for value in row) for row in table.rows]
    lines = [f"| {line} |" for line in (head, rule, *rows)]
    return "\n".join([*([escape_markdown(table.caption), ""] if table.caption else []), *lines])


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it literally, on one line."""
    return text.translate(_SPECIAL).replace("\n", " ").strip()


def _keys(table: Table) -> list[str]:
    keys: list[str] = []
    for column, is_pair in zip(table.columns, _pairs(table), strict=True):
        keys += [f"{column.key}_low", f"{column.key}_high"] if is_pair else [column.key]
    return keys


def _raws(table: Table, row: list[Value]) -> Iterator[Raw]:
    for value, is_pair in zip(row, _pairs(table), strict=True):
        if not is_pair:
            yield value.raw
        elif isinstance(value.raw, tuple):
            yield from value.raw
        else:
            yield from (None, None)


def _pairs(table: Table) -> list[bool]:
    """Tell which columns hold intervals: one interval makes the whole column two."""
    return [
        any(isinstance(row[index].raw, tuple) for row in table.rows)
        for index in range(len(table.columns))
    ]


def _entry(value: Value) -> str:
    shown = escape_markdown(value.text)
    return f"**{shown}**" if value.mark == "best" and shown else shown


def to_markdown(document: Report) -> str:
    """Write a whole report."""
    parts = [f"# {escape_markdown(document.title)}", escape_markdown(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {escape_markdown(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def blocks_markdown(blocks: Iterable[Block]) -> str:
    """Write blocks without a title."""
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return table_markdown(block)
    if isinstance(block, Figure):
        return f"*Figure in the page: {escape_markdown(block.caption)}*"
    return _text(block)


def _text(block: Text) -> str:
    lines = [escape_markdown(line) for line in block.lines]
    if block.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if block.kind == "lead":
        return "\n\n".join(f"**{line}**" for line in lines)
    if block.kind == "heading":
        return "\n\n".join(f"## {line}" for line in lines)
    return "\n\n".join(lines)
