"""The whole report: the same bytes each time, the same figures in every form."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import altair
import pytest

from phalanx.report.document import Figure, Report
from phalanx.report.make import make_document
from phalanx.report.page import to_page
from phalanx.report.scope import Options
from phalanx.report.table_formats import table_csv, to_markdown
from support.made_up_study import write_made_up_study
from support.records import Outcome, write_run

CHAPTERS = [
    "in-short",
    "time-accuracy",
    "results",
    "learning-curves",
    "same-result",
    "head-to-head",
    "time-to-accuracy",
    "scaling",
    "where-time-went",
    "machines",
    "published",
    "doubts",
    "what-was-run",
    "every-run",
    "notes",
]
JOB = {"name": "tiny", "model": "mlp", "data": "digits"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_made_up_study(tmp_path_factory.mktemp("made") / "study").path


@pytest.fixture(scope="module")
def document(study: Path) -> Report:
    return make_document([study])


def csv_files(document: Report) -> dict[str, str]:
    return {f"{table.id}.csv": table_csv(table) for table in document.tables()}


def test_every_chapter_is_there(document: Report) -> None:
    assert [section.id for section in document.sections] == CHAPTERS
    ids = [block.id for block in [*document.tables(), *document.figures()]]
    assert len(ids) == len(set(ids))


def test_every_chart_keeps_to_the_grammar(document: Report) -> None:
    kinds = {}
    for figure in document.figures():
        for place, panel in enumerate(figure.panels):
            # Checking against the grammar is slow: the same chart of another task is the same.
            kinds[figure.id.rstrip("-0123456789"), place] = panel.spec
    assert len(kinds) >= 12
    for spec in kinds.values():
        altair.Chart.from_dict(spec, validate=True)


def test_no_line_has_more_points_than_can_be_seen(tmp_path: Path) -> None:
    write_run(tmp_path, "long", JOB, Outcome(epochs=1000, num_steps=1000))
    for figure in make_document([tmp_path]).figures():
        for panel in figure.panels:
            for values in _data_of(panel.spec):
                counts: dict[str, int] = {}
                for row in values:
                    series = str(row.get("series"))
                    counts[series] = counts.get(series, 0) + 1
                assert max(counts.values()) <= 300


def _data_of(spec: object) -> list[list[dict[str, object]]]:
    if isinstance(spec, dict):
        own = [spec["data"]["values"]] if "data" in spec else []
        return own + [rows for part in spec.values() for rows in _data_of(part)]
    return [rows for part in spec for rows in _data_of(part)] if isinstance(spec, list) else []


def test_made_again_elsewhere_it_has_the_same_bytes(study: Path, tmp_path: Path) -> None:
    """In other processes, with other hashing, from a copy in another place."""
    code = (
        "import sys; from pathlib import Path; from phalanx.api import make_report\n"
        "source, out = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "make_report([source], page=out / 'r.html', markdown=out / 'r.md', csv=out / 'c')"
    )
    copy = shutil.copytree(study, tmp_path / "moved" / "elsewhere")
    made = []
    for seed, place in (("1", study), ("2", copy)):
        out = tmp_path / f"out-{seed}"
        subprocess.run(
            ["env", f"PYTHONHASHSEED={seed}", sys.executable, "-c", code, str(place), str(out)],
            check=True,
            timeout=110,
        )
        made.append({path.name: path.read_bytes() for path in sorted(out.rglob("*.*"))})
    assert made[0].keys() == made[1].keys()
    for name, content in made[0].items():
        assert content == made[1][name], name
        assert str(tmp_path.parent).encode() not in content, name
        assert b"/nowhere" not in content, name


def test_page_markdown_and_sheets_have_the_same_tables(document: Report) -> None:
    page, text, sheets = to_page(document), to_markdown(document), csv_files(document)
    shown = _Tables()
    shown.feed(page)
    for table in document.tables():
        entries = [[value.text for value in row] for row in table.rows]
        assert shown.rows[f"table-{table.id}"] == entries
        rows = list(csv.reader(io.StringIO(sheets[f"{table.id}.csv"])))
        assert len(rows) == 1 + len(table.rows)
        assert len({len(row) for row in rows}) == 1
    # Tables in Markdown: as many lines as rows, with the same number of cells.
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == sum(2 + len(table.rows) for table in document.tables())


class _Tables(HTMLParser):
    """The entries of all tables of a page, by id."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._table = ""
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._table = dict(attrs)["id"] or ""
            self.rows[self._table] = []
        elif tag == "tbody":
            self.rows[self._table] = []
        elif tag == "tr" and self._table:
            self.rows[self._table].append([])
        elif tag == "td":
            self._in_cell = True
            self.rows[self._table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[self._table][-1][-1] += data


def test_sheets_hold_full_precision_and_intervals(document: Report) -> None:
    sheets = csv_files(document)
    rows = list(csv.DictReader(io.StringIO(sheets["results-1.csv"])))
    (row,) = [row for row in rows if row["method"] == "AR" and row["batch"] == "32"]
    # Cell 2 of the study: 0.93 + 0.008 + 0.001 * seed, and 18 + 0.1 * seed.
    assert float(row["test_accuracy_mean"]) == pytest.approx(0.940)
    assert float(row["train_s_mean"]) == pytest.approx(18.2)
    # t(0.975, 2) * 0.1 / sqrt(3)
    assert float(row["train_s_half_width"]) == pytest.approx(0.248413771)
    pairs = list(csv.DictReader(io.StringIO(sheets["head-to-head-time.csv"])))
    (pair,) = [
        pair
        for pair in pairs
        if (pair["task"], pair["first"], pair["second"]) == ("small", "AR · 64", "ONE · 64")
    ]
    assert float(pair["interval_low"]) < float(pair["difference_s"]) < float(pair["interval_high"])


def test_what_users_write_cannot_become_markup(document: Report) -> None:
    page = to_page(document)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<b>late</b>" not in page
    scripts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert [type(json.loads(text)) for text in scripts] == [list, dict]
    assert "<script>alert" not in to_markdown(document)


def test_doubts_are_pointed_at_and_counted(document: Report) -> None:
    text = to_markdown(document)
    assert "training time of 47.2 s lies far from the other runs of its cell" in text
    assert "worker-1 was killed" in text
    assert "no such data" in text
    sheets = csv_files(document)
    rows = list(csv.DictReader(io.StringIO(sheets["results-1.csv"])))
    (odd,) = [row for row in rows if (row["method"], row["batch"]) == ("AR", "64")]
    assert float(odd["train_s_mean"]) == pytest.approx((17.1 + 47.2 + 17.3) / 3)
    unfinished = list(csv.DictReader(io.StringIO(sheets["unfinished.csv"])))
    assert [row["cause"] for row in unfinished] == ["worker-1 was killed", "no such data"]


def test_slips_of_the_published_figures_are_marked(document: Report) -> None:
    sheets = csv_files(document)
    slips = list(csv.DictReader(io.StringIO(sheets["slips.csv"])))
    assert [(slip["printed"], slip["corrected"]) for slip in slips] == [
        ("0.9838", "0.978"),
        ("1.0015", "unknown"),
    ]
    (table,) = [table for table in document.tables() if table.id == "published-1"]
    assert [value.text for value in table.rows[1]][:4] == ["small", "PS", "32", "97.80 *"]
    # Ours stand beside: 0.93 + 0.016 + 0.002 on average, and 16.2 s.
    assert [value.text for value in table.rows[1]][4:8] == ["94.80", "± 0.25", "173.900", "16.2"]


def test_the_strategy_is_written_out_with_what_was_set(tmp_path: Path) -> None:
    servers = {"name": "parameter_server", "servers": 2, "lr_scaling": "none"}
    write_run(tmp_path, "served", {**JOB, "workers": 2, "strategy": servers})
    (row,) = csv.DictReader(io.StringIO(csv_files(make_document([tmp_path]))["cells.csv"]))
    assert row["strategy"] == "parameter_server async, servers 2, lr_scaling none"


def test_options_are_heard(study: Path) -> None:
    asked = make_document([study], Options(target=("test_accuracy", 0.94), baseline="ONE"))
    text = to_markdown(asked)
    assert "Target: test accuracy 94 % (as asked)" in text.replace("\\_", "_")


def test_one_run_makes_a_report_without_guesses(tmp_path: Path) -> None:
    write_run(tmp_path, "only", JOB, Outcome(sampled=False))
    document = make_document([tmp_path])
    assert "±" not in " ".join(
        value.text for table in document.tables() for row in table.rows for value in row
    )
    assert [section.id for section in document.sections if section.id == "scaling"] == []
    assert "1 cell rests on one run: no interval" in to_markdown(document)
    assert all(isinstance(figure, Figure) for figure in document.figures())


def test_only_failures_still_make_a_report(tmp_path: Path) -> None:
    write_run(tmp_path, "broken", JOB, Outcome(state="failed", cause="out of memory"))
    document = make_document([tmp_path])
    assert document.advice[0].startswith("No recommendation")
    assert "out of memory" in to_markdown(document)
    assert 'data-chart="' not in to_page(document)
