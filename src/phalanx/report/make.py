"""From run and study directories to a report in every form; the only door into this package.

`api.make_report` and `phalanx report` call it. Nothing of the present moment enters a report:
neither the date, nor where the records lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.report.document import Document
from phalanx.report.facts import Material, read_material
from phalanx.report.format import count_noun
from phalanx.report.pairs import pair_cells
from phalanx.report.parts.contrasts import head_to_head, same_result
from phalanx.report.parts.learning import learning
from phalanx.report.parts.ledger import doubts, every_run
from phalanx.report.parts.machines import machines
from phalanx.report.parts.notes import notes
from phalanx.report.parts.overview import in_short, what_was_run
from phalanx.report.parts.published import published
from phalanx.report.parts.results import results
from phalanx.report.parts.scaling import scaling
from phalanx.report.parts.times import where_time_went
from phalanx.report.parts.tradeoff import time_to_accuracy, tradeoff
from phalanx.report.recommend import recommend
from phalanx.report.scope import Options, Scope, open_scope


def make_document(sources: Sequence[Path], options: Options | None = None) -> Document:
    """Read studies and runs and write the report about them.

    Raises:
        SpecError: There is nothing to report, or an option fits none of it.
    """
    return write_document(open_scope(read_material(sources), options or Options()))


def write_document(scope: Scope) -> Document:
    """All chapters that the runs give material for."""
    pairs = pair_cells(scope)
    chapters = [
        in_short(scope, recommend(scope)),
        what_was_run(scope),
        results(scope),
        same_result(scope, pairs),
        head_to_head(scope, pairs),
        learning(scope),
        tradeoff(scope),
        time_to_accuracy(scope),
        scaling(scope),
        where_time_went(scope),
        machines(scope),
        published(scope),
        doubts(scope),
        every_run(scope),
        notes(scope),
    ]
    return Document(
        title=_title(scope.material),
        subtitle=_subtitle(scope),
        sections=[chapter for chapter in chapters if chapter is not None],
    )


def _title(material: Material) -> str:
    if material.study is not None:
        return material.study.title
    names = sorted({str(run.job["name"]) for run in material.runs})
    return f"Report on {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"


def _subtitle(scope: Scope) -> str:
    tasks = list(scope.tasks)
    shown = "; ".join(tasks) if len(tasks) <= 4 else count_noun(len(tasks), "task")
    return f"{shown}. {count_noun(len(scope.material.runs), 'run')}."
