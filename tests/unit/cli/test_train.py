from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.main import app
from phalanx.cli.request import with_short_options
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.errors import SpecError
from phalanx.records.manifest import describe, write_manifest
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import load_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("data: digits\nmodel: cnn\nworkers: 2\n")
    return path


def test_a_dry_run_prints_the_resolved_job_and_starts_nothing(job: Path, tmp_path: Path) -> None:
    overrides = ["--set", "optimizer.lr=0.25", "--workers", "3", "--seed", "9"]
    runs = ["--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["train", str(job), *overrides, *runs, "--dry-run"])
    assert result.exit_code == 0
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(result.stdout)
    assert load_job(resolved) == load_job(job, ["optimizer.lr=0.25", "workers=3", "seed=9"])
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_that_a_data_set_is_not_here(job: Path, tmp_path: Path) -> None:
    absent = ["--set", "data=kmnist", "--data", str(tmp_path)]
    result = CliRunner().invoke(app, ["train", str(job), *absent, "--dry-run"])
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: kmnist: ")
    assert "run `phalanx data fetch kmnist`" in result.stderr


def test_a_short_option_wins_over_set(job: Path) -> None:
    arguments = ["train", str(job), "--workers", "4", "--set", "workers=3", "--dry-run", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert json.loads(result.stdout)["workers"] == 4


def test_set_refines_what_a_short_option_sets(job: Path) -> None:
    refined = ["--set", "strategy.every=3", "--strategy", "local_sgd"]
    result = CliRunner().invoke(app, ["train", str(job), *refined, "--dry-run", "--json"])
    assert json.loads(result.stdout)["strategy"]["every"] == 3


def test_a_dry_run_of_a_resumed_run_starts_from_its_own_job(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "old")
    old = JobSpec.model_validate({"name": "old", "epochs": 7})
    write_manifest(run, describe(old, data_root=tmp_path, cache_root=tmp_path))
    arguments = ["train", "--resume", "last", "--runs", str(tmp_path), "--set", "seed=5"]
    result = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"])
    resolved = json.loads(result.stdout)
    assert (resolved["name"], resolved["epochs"], resolved["seed"]) == ("old", 7, 5)


def test_data_cannot_be_moved_on_resume(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--resume", "last", "--data", str(tmp_path)])
    assert isinstance(result.exception, SpecError)


def test_an_option_beats_its_variable_and_that_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "variable"))
    monkeypatch.setenv("PHALANX_DATA", "~/data")
    monkeypatch.setenv("PHALANX_CACHE", "")
    assert runs_root(tmp_path / "option") == tmp_path / "option"
    assert runs_root() == tmp_path / "variable"
    assert data_root() == Path.home() / "data"
    assert cache_root() == Path.home() / ".cache" / "phalanx" / "cache"
    monkeypatch.delenv("PHALANX_RUNS")
    assert runs_root() == Path("runs")


def test_a_short_option_wins_over_settings_and_is_refined_by_them() -> None:
    found = with_short_options(
        ["strategy.every=2", "workers=3", "epochs=5"],
        {"strategy": "local_sgd", "workers": 4, "seed": None},
    )
    assert found == ["workers=3", "epochs=5", "strategy=local_sgd", "workers=4", "strategy.every=2"]
