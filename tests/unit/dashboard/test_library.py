"""The list of runs: quick with many, and one bad directory spoils nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phalanx.dashboard.library import Library, id_of
from phalanx.errors import SpecError
from support.dashboard import JOB, write_small_study
from support.opened import opened_files
from support.records import write_run

NUM_RUNS = 1000


def test_a_thousand_runs_are_listed_at_once(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", "one", JOB)
    root = tmp_path / "runs"
    for number in range(NUM_RUNS):
        run = root / f"run-{number:04d}"
        run.mkdir(parents=True)
        for name in ("manifest.json", "status.json", "summary.json"):
            shutil.copyfile(first.path / name, run / name)
    library = Library([root])
    with opened_files() as opened:
        assert len(library.scan()) == NUM_RUNS
    # Files, not seconds: nothing but the three small files of each run, and each once.
    assert len(opened) == len(set(opened)) == 3 * NUM_RUNS
    with opened_files() as opened:
        again = library.scan()
    assert opened == []
    changed = root / "run-0007"
    (changed / "summary.json").unlink()
    after = library.scan()
    assert [id for id in after if after[id] != again[id]] == [id_of(changed)]
    assert after[id_of(changed)].accuracy is None


def test_runs_studies_plans_and_what_cannot_be_read(tmp_path: Path) -> None:
    write_run(tmp_path, "good", JOB)
    study = write_small_study(tmp_path / "study")
    for name, content in {"torn": "{", "list": "[]", "other": '{"job": 3}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(content)
    (tmp_path / "plan.json").write_text("{}")
    entries = Library([tmp_path, tmp_path / "plan.json"]).scan().values()
    by_name = {one.name: one for one in entries}
    assert by_name["good"].state == "finished"
    assert by_name["study"].detail == "4 of 4 runs, 1 failed"
    assert by_name["plan.json"].kind == "plan"
    assert {by_name[name].state for name in ("torn", "list", "other")} == {"unreadable"}
    trials = [one for one in entries if one.study == "study"]
    assert len(trials) == len(list(study.runs.iterdir()))


def test_ids_are_no_paths(tmp_path: Path) -> None:
    run = write_run(tmp_path, "<img src=x onerror=alert(1)>", JOB)
    library = Library([tmp_path])
    (entry,) = library.scan().values()
    assert entry.id == id_of(run.path)
    assert entry.id.isalnum()
    with pytest.raises(SpecError, match="no such run"):
        library.find("../../etc")
