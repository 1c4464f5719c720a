"""One table in every format, and on terminals of every width."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from phalanx.cli.blame import blame_table
from phalanx.cli.main import app
from phalanx.cli.output import print_blocks, render_table, show
from phalanx.report.blame import Blame, RankBlame
from phalanx.report.document import Block, Column, Table, Text, Value, line, tabulate, text
from phalanx.report.table_formats import table_csv, table_markdown, table_records

ROWS = [("a|b", 0.123456789, (0.1, 0.2)), ("[bold]", None, (None, None))]
TABLE: Table = tabulate(
    "rows",
    ROWS,
    [
        (Column("name", "name", is_text=True), lambda row: text(row[0])),
        (Column("value_s", "mean\nvalue"), lambda row: Value(f"{row[1] or 0:.1f} s", row[1])),
        (Column("interval", "interval", keep=1), lambda row: Value("an interval", row[2])),
    ],
    "What was measured",
)


def on_screen(blocks: list[Block], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    print_blocks(console, blocks)
    return console.export_text()


def test_csv_and_records_hold_raw_values_and_both_ends_of_intervals() -> None:
    first, second = csv.DictReader(io.StringIO(table_csv(TABLE)))
    assert float(first["value_s"]) == 0.123456789
    assert (first["interval_low"], second["interval_high"]) == ("0.1", "")
    assert table_records(TABLE)[0] == {
        "name": "a|b",
        "value_s": 0.123456789,
        "interval_low": 0.1,
        "interval_high": 0.2,
    }


def test_markdown_holds_texts_and_escapes_them() -> None:
    lines = table_markdown(TABLE).splitlines()
    assert lines[:4] == [
        "What was measured",
        "",
        "| name | mean value | interval |",
        "| :--- | ---: | ---: |",
    ]
    assert lines[4].startswith("| a\\|b | 0.1 s |")


def test_a_terminal_shows_caption_header_and_text_without_markup() -> None:
    caption, above, header, *rows = on_screen([TABLE]).splitlines()
    assert caption == "What was measured"
    assert (above.split(), header.split()) == (["mean"], ["name", "value", "interval"])
    assert rows[1].startswith("[bold]")


@pytest.mark.parametrize("width", [12, 20, 40])
def test_optional_columns_are_left_out_before_anything_is_cut(width: int) -> None:
    shown = render_table(TABLE, width=width)
    assert len(shown.columns) == (3 if width >= 40 else 2)


def test_wrapping_columns_are_folded_and_others_are_not() -> None:
    words = "word " * 30
    table = Table(
        id="t",
        caption="",
        columns=[Column("a", "a", is_text=True), Column("b", "b", is_text=True, wraps=True)],
        rows=[[text("whole-name"), text(words)]],
    )
    lines = on_screen([table], width=40).splitlines()
    assert len(lines) > 4
    assert max(cell_len(one.rstrip()) for one in lines) <= 40
    assert "whole-name" in lines[1]


def test_names_and_values_need_no_header() -> None:
    table = Table(
        id="t",
        caption="",
        columns=[Column("k", "setting", is_text=True), Column("v", "value", is_text=True)],
        rows=[[text("speed"), text("3")]],
        has_header=False,
    )
    assert on_screen([table]).split() == ["speed", "3"]
    assert "| setting | value |" in table_markdown(table)


def test_kinds_of_text_in_markdown_and_on_screen(capsys: pytest.CaptureFixture[str]) -> None:
    blocks: list[Block] = [line("Title", "heading"), Text(lines=["one", "two"], kind="list")]
    assert on_screen(blocks) == "\nTitle\n- one\n- two\n"
    show(lambda: blocks, facts=dict, form="markdown")
    assert capsys.readouterr().out == "## Title\n\n- one\n- two\n"


def test_csv_of_several_tables_has_an_empty_line_between_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(lambda: [TABLE, line("words"), TABLE], facts=dict, form="csv")
    assert capsys.readouterr().out == "\n".join([table_csv(TABLE)] * 2)


@pytest.mark.parametrize("form", ["markdown", "csv", "json"])
def test_commands_print_the_format_that_is_asked_for(form: str, tmp_path: Path) -> None:
    arguments = ["data", "list", "--data", str(tmp_path), "--format", form]
    found = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    if form == "json":
        assert "digits" in {row["name"] for row in json.loads(found)}
    elif form == "csv":
        assert "digits" in {row["name"] for row in csv.DictReader(io.StringIO(found))}
    else:
        assert "| digits |" in found


def test_json_is_short_for_the_format(tmp_path: Path) -> None:
    both = [["--json"], ["--format", "json"]]
    outputs = {
        CliRunner().invoke(app, ["data", "list", "--data", str(tmp_path), *one]).stdout
        for one in both
    }
    assert len(outputs) == 1


def test_a_narrow_screen_keeps_the_names_of_rows() -> None:
    ranks = [
        RankBlame(
            rank=rank,
            cost_s=1234.5,
            phases={"forward": 10.25, "backward": 1220.0, "input": 4.25},
            rounds_last=12_345,
            waited_s=1234.5,
        )
        for rank in (0, 1)
    ]
    found = Blame(rounds=20_000, waiting_s=2500.0, blamed_s=2400.0, ranks=ranks)
    for width in (80, 50):
        console = Console(file=io.StringIO(), width=width, record=True)
        console.print(render_table(blame_table(found), width=width))
        text = console.export_text()
        assert "worker-0" in text
        assert "worker-1" in text
        assert "in backward" in text
        assert "…" not in text
