from __future__ import annotations

import base64
from pathlib import Path

import pytest

from phalanx.errors import LaunchError
from phalanx.launch import log_sync
from phalanx.launch.log_sync import LogSync


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def sync(tmp_path: Path) -> LogSync:
    for part in ("events", "logs"):
        (tmp_path / part).mkdir()
    return LogSync(tmp_path, "b", {"worker-1"})


def test_events_arrive_as_they_are(sync: LogSync, tmp_path: Path) -> None:
    sync.append("events/worker-1.jsonl", packed('{"a": 1}\n{"b"'))
    sync.append("events/worker-1.jsonl", packed(": 2}\n"))
    assert (tmp_path / "events" / "worker-1.jsonl").read_text() == '{"a": 1}\n{"b": 2}\n'


def test_every_printed_line_is_prefixed_once_however_it_was_cut(
    sync: LogSync, tmp_path: Path
) -> None:
    for part in ("one", "\ntw", "o\nthree\n", "\nfo", "ur"):
        sync.append("logs/worker-1.log", packed(part))
    sync.finish("worker-1")
    sync.finish("worker-1")
    lines = (tmp_path / "logs" / "worker-1.log").read_text().splitlines()
    assert lines == [f"[worker-1 b] {text}" for text in ("one", "two", "three", "", "four")]


def test_whole_files_replace(sync: LogSync, tmp_path: Path) -> None:
    sync.replace("profile/worker-1.json", packed("old"), first=True, last=True)
    sync.replace("profile/worker-1.json", packed("ne"), first=True, last=False)
    assert (tmp_path / "profile" / "worker-1.json").read_text() == "old", "whole or not at all"
    sync.replace("profile/worker-1.json", packed("w"), first=False, last=True)
    assert (tmp_path / "profile" / "worker-1.json").read_text() == "new"


def test_a_progress_bar_is_seen_while_it_moves_and_nothing_of_it_is_held(
    sync: LogSync, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "worker-1.log"
    for step in range(3):
        sync.append("logs/worker-1.log", packed(f"\r{step} of 3"))
        assert log.read_bytes().endswith(b"%d of 3" % step), "before its line is complete"
    sync.finish("worker-1")
    assert log.read_bytes() == b"[worker-1 b] \r0 of 3\r1 of 3\r2 of 3\n"


@pytest.mark.parametrize(
    "path",
    [
        "manifest.json",
        "events/../status.json",
        "/etc/passwd",
        "logs/.x",
        "checkpoints/a",
        # Of the controller and of another machine's processes.
        "events/controller.jsonl",
        "events/worker-0.jsonl",
        "logs/worker-10.log",
        "profile/worker-0.json",
    ],
)
def test_a_machine_writes_to_the_files_of_its_own_processes_alone(
    sync: LogSync, tmp_path: Path, path: str
) -> None:
    with pytest.raises(LaunchError, match="not of its processes"):
        sync.append(path, packed("x"))
    with pytest.raises(LaunchError, match="not of its processes"):
        sync.replace(path, packed("x"), first=True, last=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_machine_cannot_fill_the_disk(
    sync: LogSync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_sync, "_MAX_BYTES", dict.fromkeys(("events", "logs", "profile"), 100))
    for _ in range(30):
        sync.append("events/worker-1.jsonl", packed("x" * 10))
        sync.append("logs/worker-1.log", packed("x" * 10 + "\n"))
        sync.replace("profile/worker-1.json", packed("x" * 10), first=False, last=False)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert len(sizes) == 2
    assert max(sizes) <= 100 + len("[worker-1 b] ")
    assert [one.getMessage() for one in caplog.records if "events/" in one.getMessage()] == [
        "b: events/worker-1.jsonl has reached 0 MiB; the rest is not copied"
    ]


def test_the_first_event_of_a_successor_elsewhere_is_not_lost(
    sync: LogSync, tmp_path: Path
) -> None:
    there = LogSync(tmp_path, "c", {"worker-1"})
    sync.append("events/worker-1.jsonl", packed('{"a": 1}\n{"half'))
    sync.finish("worker-1")
    there.append("events/worker-1.jsonl", packed('{"b": 2}\n'))
    lines = (tmp_path / "events" / "worker-1.jsonl").read_text().splitlines()
    assert lines == ['{"a": 1}', '{"half', '{"b": 2}']
