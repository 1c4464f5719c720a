"""The examples do what they say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.spec.loader import load_job

ROOT = Path(__file__).parents[2]
LIMIT_S = 110


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHALANX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))
    for file in (ROOT / "examples").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


def test_train_from_python(folder: Path) -> None:
    printed = run([sys.executable, "train_from_python.py"], folder)
    assert "test accuracy" in printed
    assert "everything about the run is in" in printed


def test_own_network(folder: Path) -> None:
    command = [sys.executable, "-m", "phalanx.cli.main", "train", "own_network.yaml"]
    assert "finished after 5 epochs" in run(command, folder)


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_recipes_are_valid_jobs(recipe: Path) -> None:
    assert load_job(recipe).epochs > 0
