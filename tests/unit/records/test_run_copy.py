"""Copies of run directories in a store: of one moment, verified, and only what has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.errors import SpecError, StoreError
from phalanx.records.run_copy import copy_run, fetch_run
from phalanx.records.rundir import RunDir, Status
from phalanx.store.url_store import UrlStore


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir.create(tmp_path / "runs", "trial")
    (found.path / "manifest.json").write_text("{}")
    (found.checkpoints / "step-1.safetensors").write_bytes(os.urandom(1000))
    (found.path / "lock").write_text("of the controller")
    found.write_status(Status.of_this_process("finished", attempt=1))
    return found


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/copies"


def contents(path: Path) -> dict[str, bytes]:
    files = (one for one in path.rglob("*") if one.is_file())
    return {str(one.relative_to(path)): one.read_bytes() for one in files}


def test_a_run_comes_back_as_it_was(run: RunDir, url: str, tmp_path: Path) -> None:
    copied = copy_run(run, url)
    back = fetch_run(f"{url}/{run.name}", tmp_path / "elsewhere")
    expected = contents(run.path)
    del expected["lock"]
    assert contents(back.path) == expected
    assert copied.num_bytes == sum(map(len, expected.values()))
    # Again: it is here, and equal.
    assert fetch_run(f"{url}/{run.name}", tmp_path / "elsewhere").path == back.path


def test_a_second_copy_sends_what_changed_and_drops_what_is_gone(run: RunDir, url: str) -> None:
    first = copy_run(run, url)
    (run.checkpoints / "step-1.safetensors").rename(run.checkpoints / "step-1-kept.safetensors")
    (run.checkpoints / "step-2.safetensors").write_bytes(b"newer")
    second = copy_run(run, url)
    store = UrlStore(f"{url}/{run.name}")
    stored = {one.name for one in store.list()} - {"run.json"}
    assert stored == {one.stored for one in second.files.values()}
    assert first.files["manifest.json"] == second.files["manifest.json"]


def test_a_copy_that_broke_off_leaves_the_one_before(
    run: RunDir, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_run(run, url)
    before = contents(run.path)
    (run.checkpoints / "step-1.safetensors").write_bytes(b"of another attempt")
    (run.checkpoints / "step-2.safetensors").write_bytes(b"newer")
    put, sent = UrlStore.put, []

    def putting(store: UrlStore, source: Path, name: str) -> int:
        if sent:
            raise StoreError("cut off")
        sent.append(name)
        return put(store, source, name)

    monkeypatch.setattr(UrlStore, "put", putting)
    with pytest.raises(StoreError, match="cut off"):
        copy_run(run, url)
    del before["lock"]
    assert contents(fetch_run(f"{url}/{run.name}", tmp_path / "elsewhere").path) == before


def test_a_damaged_file_is_refused_and_leaves_nothing(
    run: RunDir, url: str, tmp_path: Path
) -> None:
    copied = copy_run(run, url)
    stored = copied.files["checkpoints/step-1.safetensors"].stored
    UrlStore(f"{url}/{run.name}").write(stored, b"x" * 1000)
    with pytest.raises(StoreError, match="is damaged: its digest is another"):
        fetch_run(f"{url}/{run.name}", tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_refused(run: RunDir, url: str) -> None:
    copy_run(run, url)
    with pytest.raises(SpecError, match="holds no copy of a run"):
        fetch_run(f"{url}/nothing", run.path.parent)
    (run.path / "manifest.json").write_text("changed")
    with pytest.raises(SpecError, match="is here already and differs"):
        fetch_run(f"{url}/{run.name}", run.path.parent)
    run.write_status(Status.of_this_process("running", attempt=2))
    with pytest.raises(SpecError, match="is still running; copy it when it has ended"):
        copy_run(run, url)


def test_a_list_that_names_files_elsewhere_is_refused(
    run: RunDir, url: str, tmp_path: Path
) -> None:
    copy_run(run, url)
    store = UrlStore(f"{url}/{run.name}")
    listed = store.read("run.json").replace(b'"manifest.json":', b'"../../outside.json":')
    store.write("run.json", listed)
    with pytest.raises(StoreError, match=r"names a file '\.\./\.\./outside\.json'"):
        fetch_run(f"{url}/{run.name}", tmp_path / "elsewhere")
