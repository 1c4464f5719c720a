"""`phalanx simulate` as typed at a prompt."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phalanx.cli.main import app
from phalanx.errors import PhalanxError

FIGURES = ["--compute-ms", "50", "--parameters", "1e5", "--rounds", "4"]
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("{data: digits, batch: {global: 64}, workers: 2, strategy: allreduce}\n")
    return str(path)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def facts(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def test_a_table_of_common_strategies(job: str) -> None:
    text = run(job, *FIGURES, "--workers", "12", "--stragglers", "0.25:3", "--crash", "1@0.1+0.2")
    assert "12 workers, batch 32 each, 4 rounds, 25 % of machines 3 times slower" in text
    for name in ("allreduce", "local_sgd every 8", "bsp", "ssp 3", "async"):
        assert name in text


def test_csv_holds_the_raw_numbers(job: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run(job, *FIGURES, "--format", "csv"))))
    first = rows[0]
    assert first["strategy"] == "allreduce"
    assert float(first["samples_per_s"]) > 0
    assert 0 <= float(first["waiting_share"]) <= 1


def test_strategies_by_name_consistency_and_mapping(job: str) -> None:
    wanted = ["local_sgd", "dssp", "{name: parameter_server, consistency: k_sync, k: 3}"]
    options = [word for one in wanted for word in ("--strategy", one)]
    found = facts(job, *FIGURES, "--workers", "5", *options)
    labels = [one["strategy"] for one in found["strategies"]]
    assert labels == ["local_sgd every 8", "parameter_server dssp", "parameter_server k_sync k=3"]
    assert found["scenario"]["workers"] == 5


def test_the_batch_of_a_worker_stays_the_same(job: str) -> None:
    two, ten = (facts(job, *FIGURES, "--workers", n)["strategies"][0] for n in ("2", "10"))
    assert (two["samples"], ten["samples"]) == (2 * 32 * 4, 10 * 32 * 4)


@pytest.mark.parametrize("name", ["chart.html", "chart.svg"])
def test_charts(job: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    run(job, *FIGURES, "--strategy", "async", "--strategy", "allreduce", "--chart", str(path))
    text = path.read_text()
    assert text.lstrip().startswith("<!DOCTYPE html>" if name.endswith("html") else "<svg")
    assert "parameter_server async" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--compute-ms", "50"], "--compute-ms and --parameters go together"),
        ([*FIGURES, "--bandwidth", "fast"], "--bandwidth fast: write 100Mbit/s or 1Gbit/s"),
        ([*FIGURES, "--stragglers", "2:4"], "--stragglers 2:4: write SHARE:FACTOR"),
        ([*FIGURES, "--crash", "one"], "--crash one: write RANK@SECONDS"),
        ([*FIGURES, "--crash", "7@1"], "there is no worker 7 to crash"),
        ([*FIGURES, "--chart", "a.png"], "the name must end in .html or .svg"),
        ([*FIGURES, "--strategy", "spss"], "spss"),
        ([*FIGURES, "--strategy", "split"], "a split network is not simulated"),
        (["--calibrate", "never"], "shows how fast this job is"),
    ],
)
def test_wrong_options(job: str, arguments: list[str], sentence: str, tmp_path: Path) -> None:
    places = ["--runs", str(tmp_path / "runs")]
    settings = {"PHALANX_CACHE": str(tmp_path / "cache")}
    result = CliRunner().invoke(app, ["simulate", job, *places, *arguments], env=settings)
    assert isinstance(result.exception, PhalanxError)
    assert sentence in str(result.exception)


def test_every_option_is_on_the_page() -> None:
    page = (DOCS / "ref-cli.md").read_text()
    text = CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "120"}).output
    options = set(re.findall(r"│ (--[a-z-]+)", text)) - {"--help"}
    assert len(options) > 15
    assert {option for option in options if f"`{option}" not in page} == set()
