"""A launcher of the user's own, chosen on the command line and kept for the continuation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.runs import Place

LAUNCHER = """
from phalanx.launch.catalogue import LauncherKind
from phalanx.launch.local import LocalLauncher

class Counting(LocalLauncher):
    def check(self):
        super().check()
        print_to("checked")

    def start(self, specs):
        print_to("started " + " ".join(spec.process for spec in specs))
        return super().start(specs)

    def close(self):
        print_to("closed")

def print_to(text):
    with open("launches.txt", "a") as file:
        file.write(text + "\\n")

KIND = LauncherKind("counting", "mine:Counting", "this machine, and counts", takes_pool=False)
"""
JOB = {"model": "mlp", "data": "digits", "epochs": 1, "workers": 1, "strategy": "single"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path, tmp_path / "cache")
    (tmp_path / "mine.py").write_text(LAUNCHER)
    made.write_job(JOB)
    return made


def test_a_run_is_started_and_continued_by_the_launcher_that_was_named(place: Place) -> None:
    done = place.run("train", "job.yaml", "--launch", "mine:KIND", "-q")
    assert done.returncode == 0, done.stderr
    [run] = place.runs.iterdir()
    assert json.loads((run / "manifest.json").read_text())["launch"] == "mine:KIND"
    once = ["checked", "started worker-0", "closed"]
    launches = place.folder / "launches.txt"
    assert launches.read_text().splitlines() == once
    done = place.run("train", "--resume", "last", "--epochs", "2", "-q")
    assert done.returncode == 0, done.stderr
    assert launches.read_text().splitlines() == once * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--launch", "ssh"], "launcher 'ssh' needs machines; name a pool with --pool"),
        (["--launch", "lokal"], "unknown launcher 'lokal'; did you mean 'local'?"),
        (["--launch", "mine:Counting"], "launcher 'mine:Counting' is ABCMeta, not LauncherKind"),
    ],
)
def test_a_launcher_that_does_not_do_is_bad_input(
    place: Place, arguments: list[str], sentence: str
) -> None:
    done = place.run("train", "job.yaml", "-q", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not place.runs.exists(), "nothing was begun"
