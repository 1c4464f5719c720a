"""The tables of a report as CSV: full precision, one file each, an interval as two columns."""

from __future__ import annotations

import csv
import io

from phalanx.report.document import Document, Raw, Table


def to_sheets(document: Document) -> dict[str, str]:
    """File name to content."""
    return {f"{table.id}.csv": _sheet(table) for table in document.tables()}


def _sheet(table: Table) -> str:
    pairs = [
        any(isinstance(row[index].raw, tuple) for row in table.rows)
        for index in range(len(table.columns))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head: list[str] = []
    for column, is_pair in zip(table.columns, pairs, strict=True):
        head += [f"{column.key}_low", f"{column.key}_high"] if is_pair else [column.key]
    writer.writerow(head)
    for row in table.rows:
        entries: list[str] = []
        for value, is_pair in zip(row, pairs, strict=True):
            ends = value.raw if isinstance(value.raw, tuple) else (None, None)
            entries += [_plain(end) for end in ends] if is_pair else [_plain(value.raw)]
        writer.writerow(entries)
    return out.getvalue()


def _plain(raw: Raw) -> str:
    return "" if raw is None else repr(raw) if isinstance(raw, float) else str(raw)
