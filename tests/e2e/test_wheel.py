"""The built wheel holds all that a run needs, in an environment that has no source tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 800
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
NOT_NEEDED = {"tensorflow-cpu", "tensorflow", "keras", "mlflow-skinny", "playwright", "pytest"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, to: Path) -> Path:
    run(*PIP, "wheel", source, "--no-deps", "-w", to, cwd=to)
    [wheel] = to.glob("phalanx-*.whl")
    return wheel


def code_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {one for one in archive.namelist() if one.startswith("phalanx/")}


def docker_lines(word: str) -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{word} (.*)$", text, re.MULTILINE)


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 100)
def test_the_wheel_alone_trains_predicts_and_reports(tmp_path: Path) -> None:
    wheel = build(ROOT, tmp_path)
    source = ROOT / "src"
    files = {str(one.relative_to(source)) for one in source.glob("phalanx/**/*") if one.is_file()}
    assert code_in(wheel) == {one for one in files if not one.endswith(".pyc")}
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, *PIP[1:]]
    run(*pip, "install", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    run(*pip, "check", cwd=tmp_path)
    listed = run(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path)
    installed = json.loads(listed)
    assert not NOT_NEEDED & {one["name"] for one in installed}
    phalanx = python.with_name("phalanx")
    run(phalanx, "init", "first", "--to", tmp_path, cwd=tmp_path)
    options = ["--set", "data.limit=200", "--workers", "2", "--epochs", "1", "--quiet", "--json"]
    summary = json.loads(run(phalanx, "train", "job.yaml", *options, cwd=tmp_path))
    assert summary["state"] == "finished"
    assert run(phalanx, "predict", "last", cwd=tmp_path).startswith("sample,predicted,target\n")
    run(phalanx, "report", "runs", "--quiet", cwd=tmp_path)
    assert "<svg" in (tmp_path / "report.html").read_text()
    run(phalanx, "dashboard", "--once", "board.html", cwd=tmp_path)
    assert "<script" in (tmp_path / "board.html").read_text()


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S)
def test_what_the_dockerfile_copies_is_enough_to_install_from(tmp_path: Path) -> None:
    """Without Docker: its files, in an empty folder, make the same wheel."""
    source = tmp_path / "src"
    source.mkdir()
    for line in docker_lines("COPY"):
        *names, target = line.split()
        place = tmp_path / target.lstrip("/")
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)
    assert "-c /src/constraints.txt" in " ".join(docker_lines("RUN"))
    assert (source / "constraints.txt").exists()
    own, ours = tmp_path / "own", tmp_path / "ours"
    own.mkdir()
    ours.mkdir()
    assert code_in(build(source, own)) == code_in(build(ROOT, ours))
