"""Every case that `phalanx init` writes can be run as it stands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.init import CASES, write_case
from phalanx.cli.main import app
from phalanx.errors import SpecError
from phalanx.launch.job_check import check_job
from phalanx.spec.loader import load_job
from phalanx.spec.pool_file import load_pool
from phalanx.spec.study_file import load_study

PHALANX = Path(sys.executable).with_name("phalanx")


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


@pytest.mark.parametrize("case", ["own-model", "own-data", "regression"])
def test_network_and_data_of_a_case_pass_the_check(case: str, tmp_path: Path) -> None:
    write_case(case, tmp_path)
    places = {"data_root": tmp_path, "cache_root": tmp_path / "cache"}
    found = check_job(load_job(tmp_path / "job.yaml"), **places)
    assert found.num_parameters > 1000
    assert found.num_samples >= 100


@pytest.mark.parametrize("case", CASES)
def test_the_command_to_begin_with_exists(case: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", case, "--to", str(tmp_path / "my files")])
    *written, last = done.output.splitlines()
    assert all(Path(one).exists() for one in written)
    words = shlex.split(last.removeprefix("begin with: phalanx "))
    assert Path(words[-1]).exists()
    assert CliRunner().invoke(app, [*words[:-1], "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("phalanx ini", ["init"]),
        ("phalanx init own-", ["own-model", "own-data"]),
        ("phalanx study sh", ["show"]),
        ("phalanx train --strat", ["--strategy"]),
        ("phalanx blame digits-1", ["digits-1"]),
        ("phalanx report digits-", ["digits-1", "digits-2"]),
        ("phalanx train --strategy loc", ["local_sgd"]),
    ],
)
def test_a_shell_completes_commands_options_cases_and_runs(
    words: str, found: list[str], tmp_path: Path
) -> None:
    for name in ("digits-1", "digits-2", "other"):
        (tmp_path / name).mkdir()
    setting = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_PHALANX_COMPLETE": "complete_bash",
        "PHALANX_RUNS": str(tmp_path),
    }
    done = subprocess.run(
        ["env", *(f"{key}={value}" for key, value in setting.items()), PHALANX],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == found


def test_completion_is_installed_for_bash(tmp_path: Path) -> None:
    # The command finds out which shell has called it; of `bash -c` with one command none is left.
    called = f"'{PHALANX}' --install-completion && true"
    subprocess.run(
        ["env", f"HOME={tmp_path}", "bash", "-c", called],
        capture_output=True,
        timeout=60,
        check=True,
    )
    asked = (
        "source ~/.bashrc; COMP_WORDS=(phalanx ini); COMP_CWORD=1; "
        "_phalanx_completion phalanx; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        [*("env", f"HOME={tmp_path}", f"PATH={PHALANX.parent}:/usr/bin:/bin"), "bash", "-c", asked],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["init"]
