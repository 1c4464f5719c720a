"""How profiles look: tables on the screen and in files.

Every table of two runs says which is A and which is B, which way its ratios go, and in each line
who takes longer, in words: a reader who turns the page upside down still gets it right.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.cli.screen import open_console
from phalanx.errors import SpecError
from phalanx.records.rundir import encode_pretty
from phalanx.report.format import NOTHING, count_noun, format_bytes, format_count, format_percent
from phalanx.report.profile import ProfileComparison, RunProfile
from phalanx.store.atomic import write_atomically

_FORMATS = (".csv", ".md", ".json")
_LONGEST_NAME = 60


def check_format(path: Path | None) -> None:
    """Refuse a file whose kind is unknown, before any work is done for it."""
    if path is not None and path.suffix not in _FORMATS:
        raise SpecError(f"{path}: the name must end in {', '.join(_FORMATS)}")


def show_profile(profile: RunProfile, *, operators: int) -> None:
    """Print where the time of a run's profiled epochs went."""
    console = open_console()
    epochs = ", ".join(str(epoch + 1) for epoch in profile.epochs)
    console.print(Text(f"\n{profile.run}", "bold"))
    console.print(
        f"{profile.strategy}, {count_noun(profile.workers, 'worker')}, {profile.engine}; "
        f"epoch {epochs}: {_ms(profile.wall_s)} ms per epoch of one worker"
    )
    console.print(_group_table(profile))
    if operators > 0:
        _show_operators(console, profile, operators)


def show_comparison(comparison: ProfileComparison) -> None:
    """Print two runs side by side."""
    console = open_console()
    console.print(Text(f"\nA  {comparison.a}\nB  {comparison.b}", "bold"))
    table = _plain_table(("group", "A ms/epoch", "B ms/epoch", "B ÷ A"))
    table.add_column(comparison.direction, no_wrap=True)
    for row in comparison.rows:
        table.add_row(row.group, _ms(row.a_s), _ms(row.b_s), _ratio(row.b_over_a), row.verdict)
    console.print(table)


def write_table(found: RunProfile | ProfileComparison, path: Path) -> None:
    """Write a table to a file, in the format that its name says."""
    if path.suffix == ".json":
        write_atomically(path, encode_pretty(found))
        return
    header, rows = _cells(found)
    text = _markdown(header, rows) if path.suffix == ".md" else _csv(header, rows)
    write_atomically(path, text.encode())


def _cells(found: RunProfile | ProfileComparison) -> tuple[Sequence[str], list[Sequence[str]]]:
    if isinstance(found, ProfileComparison):
        header = (
            "group",
            f"A ms/epoch: {found.a}",
            f"B ms/epoch: {found.b}",
            "B ÷ A",
            found.direction,
        )
        return header, [
            (one.group, _exact_ms(one.a_s), _exact_ms(one.b_s), _ratio(one.b_over_a), one.verdict)
            for one in found.rows
        ]
    columns = ("group", "ms/epoch", "share", "lowest worker ms", "highest worker ms")
    return columns, [
        (
            one.group,
            _exact_ms(one.mean_s),
            f"{one.share:.4f}",
            _exact_ms(one.lowest_s),
            _exact_ms(one.highest_s),
        )
        for one in found.groups
    ]


def _group_table(profile: RunProfile) -> Table:
    table = _plain_table(("group", "ms/epoch", "share", "lowest worker", "highest worker"))
    for one in profile.groups:
        table.add_row(
            one.group,
            _ms(one.mean_s),
            format_percent(one.share, 1),
            _ms(one.lowest_s),
            _ms(one.highest_s),
        )
    return table


def _show_operators(console: Console, profile: RunProfile, count: int) -> None:
    with_memory = any(row.memory_bytes for row in profile.operators)
    titles = ("operator", "ms/epoch", "calls/epoch", *(("memory",) if with_memory else ()))
    table = _plain_table(titles)
    table.add_column("group", no_wrap=True)
    for row in profile.operators[:count]:
        memory = [format_bytes(max(0.0, row.memory_bytes))] if with_memory else []
        name = f"{row.span}: {row.name or 'between operators'}".removeprefix(": ")
        table.add_row(
            name[:_LONGEST_NAME], _ms(row.mean_s), format_count(row.calls), *memory, row.group
        )
    console.print()
    console.print(table)
    for row in profile.beside[:count]:
        console.print(
            f"beside the training: {row.name}, {_ms(row.mean_s)} ms/epoch from begin to end"
        )


def _plain_table(titles: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.2f}"


def _exact_ms(seconds: float) -> str:
    """For files: no thousands apart, to the microsecond."""
    return f"{1000 * seconds:.3f}"


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.3f}"
