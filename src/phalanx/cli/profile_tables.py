"""Describe operator profiles as tables.

Every table of two runs names A and B, the direction of its ratios, and in each row which of the
two takes longer, in words.
"""

from __future__ import annotations

from pathlib import Path

from phalanx.errors import SpecError
from phalanx.records.rundir import encode_pretty
from phalanx.report.document import Block, CellFormat, Column, Table, Value, line, tabulate, text
from phalanx.report.format import (
    count_noun,
    format_bytes,
    format_count,
    format_percent,
    number_field,
    shown,
    text_field,
)
from phalanx.report.profile import GroupTime, OperatorRow, ProfileComparison, RatioRow, RunProfile
from phalanx.report.table_formats import table_csv, table_markdown
from phalanx.store.atomic import write_atomically

_FORMATS = (".csv", ".md", ".json")
_LONGEST_NAME = 60


def check_format(path: Path | None) -> None:
    """Refuse an unknown file format, before any work is done for it."""
    if path is not None and path.suffix not in _FORMATS:
        raise SpecError(f"{path}: the name must end in {', '.join(_FORMATS)}")


def profile_blocks(profile: RunProfile, *, operators: int) -> list[Block]:
    """Describe the operator times of a run's profiled epochs."""
    epochs = ", ".join(str(epoch + 1) for epoch in profile.epochs)
    blocks: list[Block] = [
        line(profile.run, "heading"),
        line(
            f"{profile.strategy}, {count_noun(profile.workers, 'worker')}, {profile.engine}; "
            f"epoch {epochs}: {_ms(profile.wall_s)} ms per epoch of one worker"
        ),
        profile_table(profile),
    ]
    if operators > 0:
        blocks += [line(""), _operator_table(profile, operators)]
        blocks += [
            line(f"beside the training: {row.name}, {_ms(row.mean_s)} ms/epoch")
            for row in profile.beside[:operators]
        ]
    return blocks


def write_table(found: RunProfile | ProfileComparison, path: Path) -> None:
    """Write a table to a file, in the format of its suffix."""
    if path.suffix == ".json":
        write_atomically(path, encode_pretty(found))
        return
    if isinstance(found, ProfileComparison):
        table = comparison_table(found)
    else:
        table = profile_table(found)
    content = table_markdown(table) + "\n" if path.suffix == ".md" else table_csv(table)
    write_atomically(path, content.encode())


def profile_table(profile: RunProfile) -> Table:
    """Make one row per group of operators."""
    return tabulate("groups", profile.groups, _GROUPS)


def comparison_table(comparison: ProfileComparison) -> Table:
    """Make one row per group of operators of two runs."""
    columns: list[tuple[Column, CellFormat[RatioRow]]] = [
        text_field("group", "group"),
        (Column(f"a_s: {comparison.a}", "A ms/epoch"), lambda one: shown(one.a_s, _ms)),
        (Column(f"b_s: {comparison.b}", "B ms/epoch"), lambda one: shown(one.b_s, _ms)),
        number_field("b_over_a", "B ÷ A", "{:.3f}".format),
        (Column("verdict", comparison.direction, is_text=True), lambda one: text(one.verdict)),
    ]
    caption = f"A  {comparison.a}\nB  {comparison.b}"
    return tabulate("comparison", comparison.rows, columns, caption)


def _operator_table(profile: RunProfile, count: int) -> Table:
    columns: list[tuple[Column, CellFormat[OperatorRow]]] = [
        (Column("operator", "operator", is_text=True), _name),
        number_field("mean_s", "ms/epoch", _ms),
        number_field("calls", "calls/epoch", format_count),
    ]
    if any(row.memory_bytes for row in profile.operators):
        memory = Column("memory_bytes", "memory")
        columns.append((memory, lambda one: shown(max(0.0, one.memory_bytes), format_bytes)))
    columns.append(text_field("group", "group"))
    return tabulate("operators", profile.operators[:count], columns)


def _name(row: OperatorRow) -> Value:
    name = f"{row.span}: {row.name or 'between operators'}".removeprefix(": ")
    return Value(name[:_LONGEST_NAME], name)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.2f}"


_GROUPS: list[tuple[Column, CellFormat[GroupTime]]] = [
    text_field("group", "group"),
    number_field("mean_s", "ms/epoch", _ms),
    number_field("share", "share", lambda share: format_percent(share, 1)),
    number_field("lowest_s", "lowest worker", _ms),
    number_field("highest_s", "highest worker", _ms),
]
