from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import SpecError, StoreError
from phalanx.records.manifest import describe, read_manifest, write_manifest
from phalanx.records.rundir import RunDir, Status, find_run, list_runs
from phalanx.records.summary import Summary
from phalanx.spec.loader import job_from_mapping


def make_run(root: Path, name: str, age_s: int = 0) -> RunDir:
    run = RunDir.create(root, name)
    manifest = run.path / "manifest.json"
    manifest.write_text("{}")
    os.utime(manifest, (1e9 - age_s, 1e9 - age_s))
    return run


def test_a_new_run_has_a_name_of_its_own_and_its_folders(tmp_path: Path) -> None:
    names = {RunDir.create(tmp_path, "job").name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") for name in names)
    assert sorted(os.listdir(tmp_path / next(iter(names)))) == ["checkpoints", "events", "logs"]


def test_runs_of_one_second_that_draw_the_same_number_get_two_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second may end between two runs: each number is drawn for three of them."""
    drawn = iter(["aaaa"] * 3 + ["bbbb"] * 3 + ["cccc"] * 3 + ["dddd"] * 3)
    monkeypatch.setattr("phalanx.records.rundir.secrets.token_hex", lambda _: next(drawn))
    names = [RunDir.create(tmp_path, "job").name for _ in range(4)]
    assert len(set(names)) == 4


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(StoreError, match=r"cannot create the run directory .*--runs"):
        RunDir.create(tmp_path / "runs", "job")


def test_open_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a run directory"):
        RunDir.open(tmp_path)
    run = make_run(tmp_path, "job")
    assert RunDir.open(run.path).name == run.name


@pytest.mark.parametrize("state", ["finished", "failed", "interrupted"])
def test_status_survives_the_file(tmp_path: Path, state: str) -> None:
    run = RunDir.create(tmp_path, "job")
    status = Status(state=state, pid=1, attempt=2, cause="worker-1 was killed", rank=1)
    run.write_status(status)
    assert run.read_status() == status


def test_a_running_status_is_believed_while_its_process_lives(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "job")
    run.write_status(Status(state="running", pid=os.getpid(), attempt=1))
    assert run.read_status().state == "running"


def test_a_run_without_status_is_lost(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path, "job").read_status().state == "lost"


def test_a_run_whose_controller_is_gone_is_lost(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "job")
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(60)
    run.write_status(Status(state="running", pid=child.pid, attempt=3))
    status = run.read_status()
    assert (status.state, status.attempt) == ("lost", 3)
    assert status.cause is not None


def test_a_controller_that_nobody_has_buried_is_gone_too(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "job")
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        # WNOWAIT: wait for the end, but leave the zombie.
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        run.write_status(Status(state="running", pid=zombie.pid, attempt=1))
        assert run.read_status().state == "lost"


def test_summary_survives_the_file(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "job")
    assert run.read_summary() is None
    numbers = {
        field: 1
        for field, kind in Summary.__annotations__.items()
        if kind in ("int", "float", "float | None")
    }
    words = {field: "x" for field, kind in Summary.__annotations__.items() if kind == "str"}
    summary = Summary(**numbers, **words, stopped_early=True)  # type: ignore[arg-type]
    run.write_summary(summary)
    assert run.read_summary() == summary


def test_runs_are_listed_oldest_first_and_other_folders_are_not(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "nowhere") == []
    new, old = make_run(tmp_path, "a", age_s=1), make_run(tmp_path, "b", age_s=100)
    (tmp_path / "notes").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == [old.name, new.name]


def test_a_run_is_found_by_path_name_beginning_and_last(tmp_path: Path) -> None:
    old, new = make_run(tmp_path, "abc", age_s=100), make_run(tmp_path, "abd", age_s=1)
    for word in (str(old.path), old.name, "abc"):
        assert find_run(tmp_path, word).path == old.path
    assert find_run(tmp_path, "last").path == new.path


def test_an_ambiguous_beginning_lists_the_candidates(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "abc"), make_run(tmp_path, "abd")]
    with pytest.raises(SpecError, match="could be any of") as caught:
        find_run(tmp_path, "ab")
    assert all(run.name in str(caught.value) for run in runs)


@pytest.mark.parametrize("name", ["zzz", "last", ""])
def test_an_unknown_run_says_where_it_was_looked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"no run .*phalanx runs list"):
        find_run(tmp_path, name)


def test_a_whole_name_wins_over_a_longer_one_that_begins_with_it(tmp_path: Path) -> None:
    short, long = tmp_path / "job-1", tmp_path / "job-12"
    for path in (short, long):
        path.mkdir()
        (path / "manifest.json").write_text("{}")
    assert find_run(tmp_path, "job-1").path == short


def test_the_manifest_gives_the_same_job_back(tmp_path: Path) -> None:
    job = job_from_mapping(
        {"model": {"name": "resnet", "n": 1}, "batch": {"per_worker": 8}, "workers": 3}
    )
    run = RunDir.create(tmp_path, "job")
    write_manifest(run, describe(job, data_root=tmp_path / "data", cache_root=tmp_path / "cache"))
    manifest = read_manifest(run)
    assert job_from_mapping(manifest.job) == job
    assert Path(manifest.data_root) == tmp_path / "data"
    assert manifest.packages["torch"][0].isdigit()
    assert manifest.cores >= 1
    assert manifest.memory_bytes > 1 << 20
    assert manifest.cpu


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, "job")
    with pytest.raises(StoreError, match=r"cannot read .*manifest\.json"):
        read_manifest(run)


def test_the_state_of_the_users_repository_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=60)

    monkeypatch.chdir(tmp_path)
    job = job_from_mapping({})
    assert describe(job, data_root=tmp_path, cache_root=tmp_path).source == {}
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    clean = describe(job, data_root=tmp_path, cache_root=tmp_path).source
    assert clean["state"] == "clean"
    assert len(clean["commit"]) == 40
    (tmp_path / "new.py").write_text("")
    assert describe(job, data_root=tmp_path, cache_root=tmp_path).source["state"] == "modified"
