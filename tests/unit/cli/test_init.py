"""Every case that `phalanx init` writes can be run as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phalanx.cli.init import CASES, write_case
from phalanx.errors import SpecError
from phalanx.launch.job_check import check_job
from phalanx.spec.loader import load_job
from phalanx.spec.pool_file import load_pool
from phalanx.spec.study_file import load_study


@pytest.mark.parametrize("case", CASES)
def test_the_files_of_a_case_are_valid_and_commented(case: str, tmp_path: Path) -> None:
    for path in write_case(case, tmp_path):
        match path.name:
            case "job.yaml":
                load_job(path)
            case "pool.yaml":
                load_pool(path)
            case "study.yaml":
                load_study(path)
        if path.suffix == ".yaml":
            assert path.read_text().startswith("# ")


def test_nothing_is_replaced_unless_asked_for(tmp_path: Path) -> None:
    write_case("own-model", tmp_path)
    (tmp_path / "job.yaml").write_text("mine")
    with pytest.raises(SpecError, match=r"job.yaml is there already"):
        write_case("first", tmp_path)
    assert (tmp_path / "job.yaml").read_text() == "mine"
    write_case("first", tmp_path, force=True)
    assert "name: first" in (tmp_path / "job.yaml").read_text()


def test_an_unknown_case_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown case 'own_modle'; did you mean 'own-model'"):
        write_case("own_modle", tmp_path)


def test_the_own_network_and_the_own_table_pass_the_check(tmp_path: Path) -> None:
    for case in ("own-model", "own-data"):
        write_case(case, tmp_path / case)
    rows = np.random.default_rng(0).normal(size=(80, 4))
    table = np.c_[rows, np.where(rows[:, 0] > 0, 7, 3)]
    np.savetxt(tmp_path / "own-data" / "table.csv", table, delimiter=",", header="a,b,c,d,class")
    subprocess.run(
        [sys.executable, "data.py", "table.csv"],
        cwd=tmp_path / "own-data",
        check=True,
        capture_output=True,
        timeout=60,
    )
    places = {"data_root": tmp_path, "cache_root": tmp_path / "cache"}
    network = check_job(load_job(tmp_path / "own-model" / "job.yaml"), **places)
    assert network.num_parameters > 1000
    assert check_job(load_job(tmp_path / "own-data" / "job.yaml"), **places).num_samples == 65
