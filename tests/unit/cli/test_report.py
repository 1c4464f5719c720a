"""`phalanx report` as typed at a prompt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.main import app
from phalanx.errors import SpecError
from support.records import Outcome, write_run

JOB = {"name": "tiny", "model": "mlp", "data": "digits"}
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in (1, 2):
        write_run(
            tmp_path / "runs", f"tiny-{seed}", {**JOB, "seed": seed}, Outcome(train_s=4 + seed)
        )
    return tmp_path / "runs"


def test_a_directory_becomes_a_page_a_text_and_tables(runs: Path, tmp_path: Path) -> None:
    page, text, tables = tmp_path / "out" / "r.html", tmp_path / "r.md", tmp_path / "tables"
    arguments = [
        "report",
        str(runs),
        "-o",
        str(page),
        "--markdown",
        str(text),
        "--csv",
        str(tables),
    ]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "nothing else to compare it with" in " ".join(done.output.split())
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert text.read_text().startswith("# Report on tiny\n")
    assert (tables / "results-1.csv").is_file()


def test_a_directory_of_many_tasks_is_told_in_a_screenful(tmp_path: Path) -> None:
    for number in range(9):
        job = {**JOB, "model": {"name": "mlp", "hidden": [number + 1]}}
        write_run(tmp_path / "runs", f"tiny-{number}", job, Outcome())
    page = str(tmp_path / "r.html")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "-o", page])
    assert done.output.count("nothing else") == 5
    assert "and 4 tasks more, on the page" in done.output
    assert "hidden [9]" in Path(page).read_text()


def test_names_of_runs_are_looked_for_among_the_runs(runs: Path, tmp_path: Path) -> None:
    text = tmp_path / "r.md"
    arguments = ["report", "tiny-2", "--runs", str(runs), "-q", "-o", str(tmp_path / "r.html")]
    done = CliRunner().invoke(app, [*arguments, "--markdown", str(text)], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, "")
    assert "1 finished run in 1 cell" in text.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "0.97"], "a target is MEASURE=VALUE"),
        (["--target", "speed=3"], "a target is one of"),
        (["--baseline", "single"], "no runs of the baseline"),
    ],
)
def test_what_makes_no_sense_is_said(runs: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        CliRunner().invoke(app, ["report", str(runs), *arguments], catch_exceptions=False)


def test_every_option_is_on_the_page() -> None:
    page = (DOCS / "ref-cli.md").read_text()
    text = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "120"}).output
    options = set(re.findall(r"│ (--[a-z-]+)", text)) - {"--help"}
    assert len(options) == 10
    assert {option for option in options if f"`{option}" not in page} == set()
