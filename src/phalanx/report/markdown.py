"""Write a report, or the blocks of a command, as Markdown; figures by their captions."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.report.document import Block, Figure, Report, Table, Text
from phalanx.report.table_formats import escape_markdown, table_markdown


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
