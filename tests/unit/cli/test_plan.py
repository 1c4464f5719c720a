"""What `phalanx plan` says about options and files that are wrong, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.main import app
from phalanx.errors import PhalanxError


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--deadline", "soon"], "--deadline takes a time such as 90min or 2h, not 'soon'"),
        (["--calibrate", "never"], "shows how fast this job is; train it once"),
    ],
)
def test_wrong_options(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("data: digits\n")
    places = ["--runs", str(tmp_path / "runs")]
    settings = {"PHALANX_CACHE": str(tmp_path / "cache")}
    result = CliRunner().invoke(app, ["plan", str(path), *places, *arguments], env=settings)
    assert isinstance(result.exception, PhalanxError)
    assert sentence in str(result.exception)
    assert result.exception.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        (["--goal", "speed"], "'speed' is not one of 'time', 'cost', 'energy', 'balanced'"),
        (["--accept", "all"], "'all' is not one of 'exact', 'rounded', 'lossy', 'stale'"),
        (["--calibrate", "yes"], "'yes' is not one of 'auto', 'never', 'fresh'"),
    ],
)
def test_wrong_choices(arguments: list[str], choices: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("data: digits\n")
    command = ["plan", str(tmp_path / "job.yaml"), *arguments]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert arguments[0] in result.output
    assert choices in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["job.yaml", "--plan", "plan.json"], "--plan plan.json holds its job; leave out job.yaml"),
        (["--plan", "plan.json", "--epochs", "3"], "leave out epochs=3"),
        (["--plan", "none.json"], "cannot read the plan none.json"),
    ],
)
def test_plans_that_cannot_be_run(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert isinstance(result.exception, PhalanxError)
    assert sentence in str(result.exception)
