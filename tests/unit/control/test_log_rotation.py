from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from phalanx.control.log_rotation import LogRotation, rotate
from support.waiting import wait_until


def test_a_long_log_is_cut_while_its_process_goes_on_writing(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    with path.open("ab", buffering=0) as log:
        log.write(b"old line\n" * 10)
        assert not rotate(path, 90)
        log.write(b"one more\n")
        assert rotate(path, 90)
        log.write(b"new line\n")
    assert path.read_bytes() == b"new line\n"
    older = (tmp_path / "worker-0.log.1").read_bytes()
    assert older == b"old line\n" * 10 + b"one more\n"


def test_only_the_last_two_parts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    for text in ("first" * 10, "second" * 10, "third" * 10):
        path.write_text(text)
        assert rotate(path, 10)
    assert (tmp_path / "worker-0.log.1").read_text() == "third" * 10
    assert sorted(os.listdir(tmp_path)) == ["worker-0.log", "worker-0.log.1"]


def test_on_a_full_disk_the_log_is_cut_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        target.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", refuse)
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"x" * 100)
    assert rotate(path, 10)
    assert path.read_bytes() == b""
    assert not (tmp_path / "worker-0.log.1").exists()


def test_the_logs_of_a_run_are_looked_after(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"x" * 100)
    (tmp_path / "notes.txt").write_bytes(b"x" * 100)
    with LogRotation(tmp_path, limit_bytes=10, every_s=0.01):
        wait_until(lambda: path.stat().st_size == 0, "the rotation")
    assert (tmp_path / "notes.txt").stat().st_size == 100
