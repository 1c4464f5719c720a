"""The report as Markdown: the same sentences and tables; figures by their captions."""

from __future__ import annotations

from phalanx.report.document import Block, Column, Document, Figure, Table, Text, Value

_SPECIAL = str.maketrans({"|": "\\|", "*": "\\*", "_": "\\_", "<": "&lt;", ">": "&gt;"})


def to_markdown(document: Document) -> str:
    """The whole report as one text."""
    parts = [f"# {_escape(document.title)}", _escape(document.subtitle)]
    for section in document.sections:
        parts.append(f"## {_escape(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        return f"*Figure in the page: {_escape(block.caption)}*"
    return _text(block)


def _text(block: Text) -> str:
    lines = [_escape(line) for line in block.lines]
    if block.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if block.kind == "lead":
        return "\n\n".join(f"**{line}**" for line in lines)
    return "\n\n".join(lines)


def _table(table: Table) -> str:
    head = " | ".join(_head(column) for column in table.columns)
    rule = " | ".join(
        ":---" if column.is_text or column.joins else "---:" for column in table.columns
    )
    rows = [" | ".join(_entry(value) for value in row) for row in table.rows]
    lines = [f"| {line} |" for line in (head, rule, *rows)]
    return "\n".join([f"{_escape(table.caption)}", "", *lines])


def _head(column: Column) -> str:
    title = f"{column.title}, {column.unit}" if column.unit else column.title
    return _escape(title)


def _entry(value: Value) -> str:
    shown = _escape(value.text)
    return f"**{shown}**" if value.mark == "best" else shown


def _escape(text: str) -> str:
    return text.translate(_SPECIAL).replace("\n", " ")
