from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import data_files
from phalanx.cli.data import app
from phalanx.errors import DataError, SpecError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "data"))

    def run(*arguments: str):
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
        if result.exception is not None:
            raise result.exception
        return result.stdout

    return run


def test_list_says_what_is_there(run, tmp_path):
    data_files.write_mnist(tmp_path / "data" / "mnist")
    rows = {row["name"]: row for row in json.loads(run("list", "--json"))}
    present = [name for name, row in rows.items() if row["present"]]
    assert present == ["digits", "mnist"]
    assert rows["mnist"]["location"] == str(tmp_path / "data" / "mnist")
    assert "phalanx data fetch kmnist" in run("list")
    there = json.loads(run("list", "--json", "--data", str(tmp_path)))
    assert not there[1]["present"]


def test_show_a_built_in_data_set(run):
    facts = json.loads(run("show", "digits", "--json"))
    assert facts["num_samples"] == {"train": 1294, "validation": 144, "test": 359}
    text = run("show", "digits")
    assert "(8, 8, 1) uint8" in text
    assert "1,294 train, 144 validation, 359 test" in text


def test_show_a_folder_of_ones_own(run, tmp_path, monkeypatch):
    path = tmp_path / "mine" / "part.parquet"
    data_files.write_image_parquet(path, data_files.images(20), [i % 2 for i in range(20)])
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("show", "mine", "--json"))["num_classes"] == 2


def test_fetch_from_a_directory(run, tmp_path):
    for part in ("train", "test"):
        data_files.write_image_parquet(
            tmp_path / "stick" / f"cifar10-{part}.parquet", data_files.images(3), range(3)
        )
    text = run("fetch", "cifar10", "--from", str(tmp_path / "stick"))
    assert "2 files" in text
    assert (tmp_path / "data" / "cifar10" / "cifar10-train.parquet").is_file()


def test_faults_pass_as_they_are(run, tmp_path):
    with pytest.raises(SpecError, match="did you mean 'mnist'"):
        run("fetch", "mnst")
    with pytest.raises(SpecError, match="unknown data 'mnst'"):
        run("show", "mnst")
    with pytest.raises(DataError, match="phalanx data fetch kmnist"):
        run("show", "kmnist")
    data_files.write_mnist(tmp_path / "stick")
    with pytest.raises(DataError, match="wrong checksum"):
        run("fetch", "mnist", "--from", str(tmp_path / "stick"))


def test_nothing_to_fetch_for_digits(run):
    assert "nothing to fetch" in run("fetch", "digits")


def test_distribute_shows_and_writes_a_deal(run, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("data: {name: digits, distribution: by_class}\nworkers: 3\n")
    text = run("distribute", str(job), "--show", "--out", str(tmp_path / "deal.json"))
    assert "partitioned by_class from seed 1 over 3 workers" in text
    assert "one column is one class" in text
    dealt = json.loads((tmp_path / "deal.json").read_text())
    assert sum(one["num_samples"] for one in dealt["workers"]) == 1294
    drawn = [line[8:] for line in text.splitlines() if "█" in line and ":" not in line]
    assert sum(row.count("█") for row in drawn) == 10
    run("distribute", str(job), "--picture", str(tmp_path / "deal.svg"), "--set", "workers=2")
    svg = (tmp_path / "deal.svg").read_text()
    assert svg.count("<rect") == 2 * 10 + 2
    with pytest.raises(SpecError, match="does not partition its samples"):
        run("distribute", str(job), "--set", "data.distribution=null")
