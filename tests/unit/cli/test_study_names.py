"""Studies are found by name, listed, and say when a budget ended them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.main import app
from phalanx.cli.study_table import budget_line
from phalanx.errors import SpecError
from phalanx.records.study import find_study
from phalanx.report.document import Text
from support.records import Outcome, write_study

JOB = {"name": "tiny", "model": "mlp", "data": "digits"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("study-digits", "study-dunes", "tune-digits-2"):
        cells = {"a": ({"workers": "1"}, JOB), "b": ({"workers": "2"}, JOB | {"workers": 2})}
        write_study(tmp_path / name, cells, [("a", 1, Outcome()), ("b", 1, Outcome())])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("study-digits", "study-digits"),
        ("digits", "study-digits"),
        ("runs/study-digits", "study-digits"),
        ("dun", "study-dunes"),
        ("digits-2", "tune-digits-2"),
    ],
)
def test_a_study_is_found_by_its_name(root: Path, name: str, found: str) -> None:
    assert find_study(root, name).path == root / found


def test_names_that_fit_none_or_several_are_refused(root: Path) -> None:
    with pytest.raises(SpecError, match=r"no study 'nope' in .*`phalanx study list` shows"):
        find_study(root, "nope")
    with pytest.raises(SpecError, match="could be any of study-d"):
        find_study(root, "d")


def test_commands_take_names_wherever_the_runs_are(root: Path) -> None:
    environment = {"PHALANX_RUNS": str(root)}
    listed = CliRunner().invoke(app, ["study", "list", "--json"], env=environment)
    assert [one["name"] for one in json.loads(listed.output)] == sorted(
        one["name"] for one in json.loads(listed.output)
    )
    assert {one["runs"] for one in json.loads(listed.output)} == {2}
    shown = CliRunner().invoke(app, ["study", "show", "runs/study-digits"], env=environment)
    assert shown.exit_code == 0, shown.output
    page = root / "page.html"
    made = CliRunner().invoke(app, ["report", "study-dunes", "-o", str(page)], env=environment)
    assert made.exit_code == 0, made.output
    assert page.is_file()


def test_a_budget_is_named_as_the_reason() -> None:
    block = budget_line(11, 60.0, Path("my runs/study-x"))
    assert isinstance(block, Text)
    assert block.lines[0].startswith("stopped because of the budget of 1 min 00 s: 11 runs")
    assert "`phalanx study resume 'my runs/study-x' --budget 120s` allows" in block.lines[0]
