"""The built wheel holds all that a run needs, in an environment that has no source tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_wheel_trains_and_reports(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", ROOT, "--no-deps", "-w", tmp_path, cwd=tmp_path)
    [wheel] = tmp_path.glob("phalanx-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    [packages] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # The dependencies of this environment, without what its own .pth files add: the source tree.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others))
    run(*pip, "--python", python, "install", "--no-deps", wheel, cwd=tmp_path)
    place = run(python, "-c", "import phalanx; print(phalanx.__file__)", cwd=tmp_path)
    assert place.startswith(str(packages))
    job = tmp_path / "job.yaml"
    job.write_text("{data: {name: digits, limit: 200}, workers: 2}")
    phalanx = python.with_name("phalanx")
    summary = json.loads(run(phalanx, "train", job, "--quiet", "--json", cwd=tmp_path))
    assert summary["state"] == "finished"
    run(phalanx, "report", "runs", "--quiet", cwd=tmp_path)
    assert "<svg" in (tmp_path / "report.html").read_text()
