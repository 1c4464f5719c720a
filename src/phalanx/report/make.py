"""Make reports from run and study directories, in every format; entry point of this package.

`api.make_report` and `phalanx report` call it. A report depends on its records alone: it holds
neither the date nor the path of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.errors import StoreError
from phalanx.report.document import Figure, Report
from phalanx.report.facts import Material, read_material
from phalanx.report.format import count_noun
from phalanx.report.gate import pair_cells
from phalanx.report.parts.catalogue import Need, report_parts
from phalanx.report.parts.overview import advice_lines
from phalanx.report.parts.times import Blamed, blame_typical
from phalanx.report.recommend import recommend
from phalanx.report.scope import Options, Scope, open_scope
from phalanx.report.table_formats import table_csv, to_markdown


def make_document(sources: Sequence[Path], options: Options | None = None) -> Report:
    """Read studies and runs, and make the report about them.

    Raises:
        SpecError: There is nothing to report, or an option matches none of the runs.
    """
    scope = open_scope(read_material(sources), options or Options())
    return compose(scope, blame_typical(scope))


def compose(scope: Scope, blamed: Sequence[Blamed] = ()) -> Report:
    """Make all chapters that the runs have data for.

    Raises:
        SpecError: A part that the options or the study name cannot be imported.
    """
    advice = recommend(scope)
    material: dict[Need, object] = {
        "pairs": pair_cells(scope),
        "advice": advice,
        "blamed": blamed,
    }
    chapters = []
    for name, part in report_parts(scope.parts).items():
        given = {**material, "file": scope.parts.get(name)}
        chapter = part.function()(scope, *(given[need] for need in part.needs))
        if chapter is not None:
            chapters.append(msgspec.structs.replace(chapter, folded=part.folded))
    return Report(
        title=_title(scope.material),
        subtitle=_subtitle(scope),
        advice=advice_lines(advice),
        sections=chapters,
    )


def write_page(document: Report, path: Path) -> None:
    """Write the report as one HTML file."""
    # Templates and the drawing library take a second to load; Markdown and CSV need neither.
    from phalanx.report.page import to_page

    _write(path, to_page(document))


def write_svg(figure: Figure, path: Path) -> None:
    """Write one figure as an SVG image."""
    from phalanx.report.page import to_svg

    _write(path, to_svg(figure))


def write_markdown(document: Report, path: Path) -> None:
    """Write the report as Markdown."""
    _write(path, to_markdown(document))


def write_tables(document: Report, folder: Path) -> None:
    """Write every table as CSV."""
    for table in document.tables():
        _write(folder / f"{table.id}.csv", table_csv(table))


def _write(path: Path, content: str) -> None:
    # Not through a temporary file: its mode is private, and a report is meant to be shared.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def _title(material: Material) -> str:
    if material.study is not None:
        return material.study.title
    names = sorted({str(run.job["name"]) for run in material.runs})
    return f"Report on {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"


def _subtitle(scope: Scope) -> str:
    tasks = list(scope.tasks)
    shown = "; ".join(tasks) if len(tasks) <= 4 else count_noun(len(tasks), "task")
    return f"{shown}. {count_noun(len(scope.material.runs), 'run')}."
