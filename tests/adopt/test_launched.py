"""Rewritten scripts run on several workers as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def phalanx(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt_accumulate", "gan_two_optimizers", "trainer_class"])
def test_a_rewritten_script_runs_on_two_workers(name: str, tmp_path: Path) -> None:
    phalanx("adopt", str(HERE / "scripts" / f"{name}.py"), "-o", "train.py", cwd=tmp_path)
    shown = phalanx("launch", "--workers", "2", "train.py", cwd=tmp_path)
    assert "2 workers" in shown
    (run,) = (tmp_path / "runs").glob("train-*")
    assert (run / "summary.json").exists()
