from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from phalanx.errors import ExitCode, StoreError
from phalanx.store import atomic
from phalanx.store.atomic import link_atomically, replace_atomically, write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    write_atomically(path, b"old")
    return path


def test_content_is_replaced_whole_and_nothing_else_is_left(path: Path) -> None:
    size = replace_atomically(path, lambda file: file.write(b"new content"))
    assert path.read_bytes() == b"new content"
    assert size == 11
    assert os.listdir(path.parent) == ["state.json"]


def test_colleagues_may_read_what_the_umask_lets_them(path: Path) -> None:
    for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
        former = os.umask(mask)
        try:
            write_atomically(path, b"new")
        finally:
            os.umask(former)
        assert path.stat().st_mode & 0o777 == mode


def test_a_writer_that_breaks_off_leaves_the_old_content(path: Path) -> None:
    def broken(file: BinaryIO) -> None:
        file.write(b"half of the new con")
        raise RuntimeError("crash in the middle")

    with pytest.raises(RuntimeError, match="crash in the middle"):
        replace_atomically(path, broken)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["state.json"]


def test_the_old_content_is_there_until_the_new_is_complete(path: Path) -> None:
    seen = []

    def look(file: BinaryIO) -> None:
        file.write(b"new")
        file.flush()
        seen.append(path.read_bytes())

    replace_atomically(path, look)
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"


def test_what_cannot_fit_takes_no_space(path: Path) -> None:
    def written(file: BinaryIO) -> None:
        pytest.fail("it was begun")

    free = os.statvfs(path.parent)
    too_much = (free.f_bfree + 1) * free.f_frsize * 2
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        replace_atomically(path, written, at_least=too_much)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["state.json"]


def test_a_full_disk_is_a_store_error_and_leaves_the_old_content(path: Path) -> None:
    def fill(file: BinaryIO) -> None:
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(StoreError, match="No space left on device; free some space") as caught:
        replace_atomically(path, fill)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code is ExitCode.STORE
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["state.json"]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*gone/state\.json: No such file"):
        write_atomically(tmp_path / "gone" / "state.json", b"")


def test_a_directory_in_the_way_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(StoreError, match="Is a directory"):
        write_atomically(tmp_path / "state.json", b"")
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_second_name_is_durable_before_and_after_it_appears(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    done: list[str] = []
    other = path.with_name("best.json")
    fsync, replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def rename(old: Path, new: Path) -> None:
        done.append(f"rename to {new.name}")
        replace(old, new)

    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(atomic.os, "fsync", sync)
    monkeypatch.setattr(atomic.os, "replace", rename)
    if not has_links:
        monkeypatch.setattr(atomic.os, "link", refuse)
    link_atomically(path, other)
    copied = [] if has_links else ["sync .best.json"]
    assert done == [*copied, "rename to best.json", f"sync {path.parent.name}"]
    assert other.read_bytes() == b"old"


def test_a_second_name_that_is_given_twice_leaves_nothing_else(path: Path) -> None:
    for _ in range(2):
        link_atomically(path, path.with_name("best.json"))
    assert sorted(one.name for one in path.parent.iterdir()) == ["best.json", path.name]


def test_a_second_name_that_cannot_be_given_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "link", lambda *_: full(path, path.with_name(".best.json")))
    monkeypatch.setattr(atomic.shutil, "copyfile", full)
    with pytest.raises(StoreError, match="No space left"):
        link_atomically(path, path.with_name("best.json"))
    assert [one.name for one in path.parent.iterdir()] == [path.name]
