"""Scripts of the usual shapes are rewritten, in few lines, and then do what they did."""

from __future__ import annotations

import difflib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adopt.record import SCRIPTS, described
from adopt.standin import StandInSession, module_with
from phalanx.adopt.analysis import adopt_file
from phalanx.adopt.findings import Adoption

HERE = Path(__file__).parent
OTHER_LAUNCHERS = {"accelerate_loop", "ddp_torchrun"}
NEEDS_MORE = {"ddp_torchrun": "a process group", "hardcoded_cuda": "a GPU"}

ABOUT_THE_SESSION = (
    "range(",
    "next(iter(",
    "loader(",
    "DataLoader(",
    "clip_grad_norm_",
    ".save(",
    "mkdir(",
    "cuda",
    "DataParallel",
    ".module",
    "wandb.init",
    "with open",
    "f.write",
    "enumerate(",
)

names = pytest.mark.parametrize("name", [path.stem for path in SCRIPTS])


@pytest.fixture(scope="module")
def adoptions() -> dict[str, Adoption]:
    return {path.stem: adopt_file(path) for path in SCRIPTS}


def test_there_are_many_scripts() -> None:
    assert len(SCRIPTS) + len(list((HERE / "refused").glob("*.py"))) >= 25


@names
def test_findings_and_diff_are_as_recorded(name: str, adoptions: dict[str, Adoption]) -> None:
    recorded = (HERE / "expected" / f"{name}.txt").read_text()
    assert described(adoptions[name]) == recorded, "if this is meant: python tests/adopt/record.py"
    if name not in OTHER_LAUNCHERS:
        few_lines_change(adoptions[name])
        nothing_else_changes(adoptions[name])


def few_lines_change(adoption: Adoption) -> None:
    assert adoption.rewritten is not None
    guards = adoption.rewritten.count("if session.chief")
    assert adoption.num_changed_lines - guards <= 8
    assert adoption.num_changed_lines <= 9


def nothing_else_changes(adoption: Adoption) -> None:
    assert adoption.rewritten is not None
    old, new = adoption.source.splitlines(), adoption.rewritten.splitlines()
    gone = [line[2:] for line in difflib.ndiff(old, new) if line.startswith("- ")]
    assert [line for line in gone if not any(word in line for word in ABOUT_THE_SESSION)] == []


def run(path: Path, session: StandInSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setitem(sys.modules, "phalanx", module_with(session))
    torch.manual_seed(0)
    runpy.run_path(str(path), run_name="__main__")


@names
def test_losses_are_the_same_in_one_process(
    name: str,
    adoptions: dict[str, Adoption],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(HERE / "stubs"))
    monkeypatch.chdir(tmp_path)
    adoption = adoptions[name]
    assert adoption.rewritten is not None
    changed = tmp_path / f"{name}.py"
    changed.write_text(adoption.rewritten)
    session = StandInSession()
    run(changed, session, monkeypatch)
    after = capsys.readouterr().out
    assert session.setups
    assert session.feed.num_passes >= 1
    assert session.passes == list(range(1, len(session.passes) + 1)), "one pass per epoch"
    if name not in NEEDS_MORE:
        run(Path(adoption.path), StandInSession(), monkeypatch)
        assert after == capsys.readouterr().out
    assert any(character.isdigit() for character in after)


def test_a_rewritten_script_is_left_alone(adoptions: dict[str, Adoption]) -> None:
    from phalanx.adopt.analysis import adopt

    once = adoptions["mnist_functions"].rewritten
    assert once is not None
    again = adopt(once)
    assert again.rewritten == once
    assert again.diff == ""
    assert [finding.name for finding in again.findings] == ["adopted"]


def test_line_endings_and_tabs_are_kept() -> None:
    from phalanx.adopt.analysis import adopt

    source = (HERE / "scripts" / "helpers.py").read_text()
    foreign = source.replace("    ", "\t").replace("\n", "\r\n")
    adoption = adopt(foreign)
    plain = adopt(source).rewritten
    assert adoption.rewritten is not None
    assert plain is not None
    assert adoption.rewritten == plain.replace("    ", "\t").replace("\n", "\r\n")


@pytest.mark.full
def test_a_process_runs_a_rewritten_script(tmp_path: Path, adoptions: dict[str, Adoption]) -> None:
    """The same with a real process, which finds the stand-in as its `phalanx`."""
    adoption = adoptions["flat_notebook"]
    assert adoption.rewritten is not None
    (tmp_path / "changed.py").write_text(adoption.rewritten)
    (tmp_path / "phalanx.py").write_text(
        (HERE / "standin.py").read_text() + "\n_made = StandInSession()\nsession = lambda: _made\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, path],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for path in (adoption.path, "changed.py")
    ]
    assert outputs[0] == outputs[1] != ""
