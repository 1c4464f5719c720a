"""Parts of a report as an open table: order, parts of others, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phalanx.errors import SpecError
from phalanx.report.make import make_document
from phalanx.report.parts.catalogue import REPORT_PARTS, report_parts
from phalanx.report.scope import Options
from support.records import write_run

MODULE = """
from phalanx.report.document import Section, Text
from phalanx.report.parts.catalogue import ReportPart

def count(scope, pairs):
    lines = [f"{len(scope.cells)} cells, {len(pairs)} pairs"]
    return Section(id="count", title="Count", blocks=[Text(lines=lines)])

def nothing(scope):
    return None

COUNT = ReportPart(name="count", make="own_part:count", order=5, needs=("pairs",))
NOTHING = ReportPart(name="nothing", make="own_part:nothing")
"""


@pytest.fixture
def own_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_part.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_part", raising=False)
    runs = tmp_path / "runs"
    write_run(runs, "tiny", {"name": "tiny", "model": "mlp", "data": "digits"})
    return runs


def test_every_built_in_part_can_be_imported_and_stands_in_the_order_of_the_table() -> None:
    parts = list(report_parts().values())
    assert all(callable(part.function()) for part in parts)
    orders = [part.order for part in parts]
    assert orders == sorted(orders)
    built_in = [part.name for part in parts if part.name in REPORT_PARTS.built_in]
    assert built_in == list(REPORT_PARTS.built_in)


def test_a_part_of_somebody_else_stands_where_its_order_says(own_part: Path) -> None:
    document = make_document([own_part], Options(parts=("own_part:COUNT", "own_part:NOTHING")))
    first = document.sections[0]
    assert (first.title, first.blocks[0].lines) == ("Count", ["1 cells, 0 pairs"])  # type: ignore[union-attr]
    without = make_document([own_part])
    assert [one.id for one in document.sections[1:]] == [one.id for one in without.sections]


def test_an_unknown_part_is_refused_with_what_there_is(own_part: Path) -> None:
    with pytest.raises(SpecError, match=r"unknown report part 'stat'.*known: summary, tradeoff"):
        make_document([own_part], Options(parts=("stat",)))
    with pytest.raises(SpecError, match="is function, not ReportPart"):
        make_document([own_part], Options(parts=("own_part:count",)))
