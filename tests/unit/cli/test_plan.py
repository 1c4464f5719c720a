"""What `phalanx plan` says about options and files that are wrong, before anything is measured."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from phalanx.cli.main import app
from phalanx.errors import PhalanxError
from phalanx.plan.planfile import record_plan, write_plan
from phalanx.plan.search import Objective, search
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.program import PRECISION
from support.worlds import fit, machine, world


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


def test_options_of_others_are_refused_for_job_files(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("data: digits\n")
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), "--gaol", "time"])
    assert isinstance(result.exception, PhalanxError)
    assert "`phalanx plan` has no --gaol, and only scripts take" in str(result.exception)


def test_what_plan_does_not_know_belongs_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.api.plan_job", refuse_with_job)
    (tmp_path / "train.py").write_text("")
    script = str(tmp_path / "train.py")
    command = ["plan", script, "--lr", "0.1", "--top", "3", "-v", "--", "--top", "4"]
    result = CliRunner().invoke(app, command)
    assert str(result.exception) == f"{script} --lr 0.1 -v --top 4"


def refuse_with_job(job: JobSpec, **_: object) -> None:
    assert job.program is not None
    raise PhalanxError(" ".join([job.program.script, *job.program.args]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train.py"], None),
        ([], None),
        (["train.py", "--lr", "0.1"], None),
        (["train.py", "--lr", "0.2"], "plan.json was made for `"),
        (["other.py"], "plan.json was made for `"),
    ],
)
def test_a_plan_may_be_run_with_its_script(
    arguments: list[str], sentence: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py"):
        Path(name).write_text("")
    spec = job_from_mapping({"program": {"script": "train.py", "args": ["--lr", "0.1"]}})
    here = socket.gethostname()
    fits = (msgspec.structs.replace(fit(), precision=PRECISION),)
    where = world([machine(here, fits=fits)])
    write_plan(record_plan(spec, search(spec, where, Objective()), where), Path("plan.json"))
    command = ["launch", "--plan", "plan.json", "--dry-run", *arguments]
    result = CliRunner().invoke(app, command)
    if sentence is None:
        assert result.exit_code == 0, result.exception
        assert "'0.1'" in result.output or '"0.1"' in result.output
    else:
        assert isinstance(result.exception, PhalanxError)
        assert sentence in str(result.exception)
