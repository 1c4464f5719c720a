"""Render what a dashboard shows as one page, which needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from phalanx.dashboard.library import Library, LibraryEntry
from phalanx.dashboard.views import Describers, View, open_view
from phalanx.report.document import Block, Figure, Report, Section, Text, tabulate
from phalanx.report.format import (
    format_accuracy,
    format_count,
    format_duration,
    number_field,
    text_field,
)
from phalanx.report.page import to_page

MAX_RUNS = 8
"""Runs that are described; the list has all."""


def render_once(library: Library, describers: Describers) -> str:
    """Return the page: the list, a comparison, and the newest runs, studies and plans."""
    entries = list(library.scan().values())
    runs = [one for one in entries if one.kind == "run" and one.state != "unreadable"]
    others = [one for one in entries if one.kind != "run" and one.state != "unreadable"]
    shown = runs[:MAX_RUNS]
    sections = [_list_section(entries)]
    if len(shown) > 1:
        view = open_view(library, "compare", [one.id for one in shown], describers)
        sections += _read(view, "comparison")
    for entry in (*others, *shown):
        view = open_view(library, entry.kind, [entry.id], describers)
        sections += _read(view, entry.id, entry.name)
    now = datetime.now().isoformat(sep=" ", timespec="seconds")
    more = f"; the newest {MAX_RUNS} of {len(runs)} runs in detail" if len(runs) > MAX_RUNS else ""
    return to_page(Report(title="Phalanx", subtitle=f"{now}{more}", advice=[], sections=sections))


def _read(view: View, prefix: str, name: str = "") -> list[Section]:
    view.poll()
    while view.is_behind:
        view.poll()
    title = f"{name}: " if name else ""
    return [
        msgspec.structs.replace(
            one,
            id=f"{prefix}-{one.id}",
            title=f"{title}{one.title}",
            blocks=[_renamed(block, prefix) for block in one.blocks],
        )
        for one in view.sections()
    ]


def _renamed(block: Block, prefix: str) -> Block:
    """Make the id of a block unique among those of several runs."""
    if isinstance(block, Text):
        return block
    kind = "figure" if isinstance(block, Figure) else "table"
    return msgspec.structs.replace(block, id=f"{prefix}-{kind}-{block.id}")


def _list_section(entries: Sequence[LibraryEntry]) -> Section:
    table = tabulate(
        "list",
        entries,
        [
            text_field("kind", "kind"),
            text_field("name", "name"),
            text_field("state", "state"),
            text_field("detail", "strategy or progress"),
            text_field("task", "task"),
            number_field("workers", "workers"),
            number_field("accuracy", "test accuracy", format_accuracy),
            number_field("samples_per_s", "samples/s", format_count),
            number_field("elapsed_s", "elapsed", format_duration),
            text_field("started", "started"),
        ],
        "Runs, studies and plans, newest first.",
    )
    return Section(id="list", title="Runs, studies and plans", blocks=[table])
