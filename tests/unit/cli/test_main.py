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
        (["train"], "there is no job to train"),
        (["train", "jbo.yaml"], "did you mean 'job.yaml'?"),
        (["train", "caf\udce9.yaml"], "is not UTF-8; rename the file"),
    ],
)
def test_bad_input_gets_one_sentence_and_code_2(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    """In a process of its own; all kinds are in `test_bad_input`."""
    (tmp_path / "job.yaml").write_text("data: digits\n")
    done = phalanx(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("phalanx: ")
    assert done.stderr.count("\n") == 1
    assert sentence.lower() in done.stderr.lower()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("group", [[], ["study"]])
def test_a_group_alone_shows_its_help_and_nothing_else(group: list[str], tmp_path: Path) -> None:
    done = phalanx(*group, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.lstrip().startswith(" ".join(["Usage: phalanx", *group]))
    assert done.stderr == ""


def test_a_shell_completes_options_and_names_of_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / "digits-1").mkdir(parents=True)
    for words, found in [("phalanx tra", "train\ntrace"), ("phalanx runs show di", "digits-1")]:
        done = subprocess.run(
            [sys.executable, "-c", "from phalanx.cli.main import run; run()"],
            cwd=tmp_path,
            env={
                "_PHALANX_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.strip() == found


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


@pytest.mark.parametrize("command", ["", "train", "plan", "study", "study run", "pool emulate"])
def test_help_is_plain(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"]).output
    assert "Show this message and exit" in shown
    assert "{" not in shown
    assert "<bool>" not in shown
