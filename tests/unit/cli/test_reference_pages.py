"""The reference pages say what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from typer.testing import CliRunner

from phalanx import errors
from phalanx.cli import settings
from phalanx.cli.main import app
from phalanx.errors import ExitCode
from phalanx.records.summary import Summary

DOCS = Path(__file__).parents[3] / "docs"


def table(page: str) -> list[list[str]]:
    """The cells of all table rows of a page."""
    lines = (DOCS / page).read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]


def test_every_key_of_the_summary_is_explained_in_order() -> None:
    rows = [row for row in table("ref-summary.md") if row[0].startswith("`")]
    assert [row[0].strip("`") for row in rows] == list(Summary.__struct_fields__)
    assert all(unit and meaning for _, unit, meaning in rows)


def test_durations_are_in_seconds() -> None:
    units = {row[0].strip("`"): row[1] for row in table("ref-summary.md")}
    wrong = [key for key, unit in units.items() if key.endswith("_s") and "second" not in unit]
    assert wrong == []


def test_every_exit_code_is_explained_as_in_the_source() -> None:
    rows = [row for row in table("ref-exit-codes.md") if row[0].isdigit()]
    source = inspect.getsource(errors.ExitCode)
    helps = dict(re.findall(r"^    (\w+) = \d+  # (.+)$", source, re.MULTILINE))
    assert [(int(code), name, meaning) for code, name, meaning, _ in rows] == [
        (code.value, code.name, helps[code.name]) for code in ExitCode
    ]
    assert all(advice for *_, advice in rows)


def test_every_option_of_train_is_on_the_page() -> None:
    page = (DOCS / "ref-cli.md").read_text()
    text = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "120"}).output
    options = set(re.findall(r"│ (--[a-z-]+)", text)) - {"--help"}
    assert len(options) == 19
    assert {option for option in options if option not in page} == set()


def test_every_variable_is_on_the_page() -> None:
    page = (DOCS / "ref-cli.md").read_text()
    variables = set(re.findall(r'"(PHALANX_\w+)"', inspect.getsource(settings)))
    assert len(variables) == 7
    assert {name for name in variables if f"`{name}`" not in page} == set()
