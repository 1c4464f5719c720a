from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx._version import __version__
from phalanx.cli.main import COMMANDS, app, load_command

HEAVY = ("torch", "numpy", "pyarrow", "sklearn", "zmq", "phalanx.api", "phalanx.spec.job")


def phalanx(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phalanx.cli.main", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["runs", "--help"], ["data", "--help"]]
)
def test_help_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from phalanx.cli.main import run\n"
        f"sys.argv = ['phalanx', *{arguments!r}]\n"
        "try:\n    run()\n"
        "except SystemExit as done:\n    assert not done.code, done.code\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Usage: phalanx" in done.stdout
    assert done.stderr == ""


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"phalanx {__version__}\n"


@pytest.mark.parametrize("command", ["train", "demo", "doctor", "runs list", "runs show", "report"])
def test_every_command_has_examples(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"phalanx {command}" in result.output.partition("Examples")[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trin"], "did you mean 'train'?"),
        (["train", "--wrkers", "3"], "--workers"),
        (["train", "--workers", "many"], "--workers"),
        (["train"], "there is no job to train"),
        (["train", "absent.yaml"], "absent.yaml: there is no such file"),
        (["train", "job.yaml", "--workers", "0"], "whole number from 1"),
        (["train", "job.yaml", "--set", "optimizer.rl=1"], "lr"),
        (["train", "job.yaml", "--resume", "last"], "leave out job.yaml"),
        (["train", "--resume", "nothing"], "no run 'nothing'"),
        (["runs", "show", "nothing"], "no run 'nothing'"),
    ],
)
def test_bad_input_gets_one_sentence_and_code_2(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("data: digits\n")
    done = phalanx(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("phalanx: ")
    assert done.stderr.count("\n") == 1
    assert sentence.lower() in done.stderr.lower()
    assert not (tmp_path / "runs").exists()


def test_a_reader_that_went_away_is_no_error_to_report(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("data: digits\n")
    command = f"{sys.executable} -m phalanx.cli.main train job.yaml --dry-run | true"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says(name: str) -> None:
    assert load_command(name).help.partition("\n\n")[0] == COMMANDS[name]
