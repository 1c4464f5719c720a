from __future__ import annotations

import base64
from pathlib import Path

import pytest

from phalanx.errors import LaunchError
from phalanx.launch.log_sync import LogSync


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def sync(tmp_path: Path) -> LogSync:
    for part in ("events", "logs"):
        (tmp_path / part).mkdir()
    return LogSync(tmp_path, "b")


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
    sync.replace("profile/worker-1.json", packed("old"))
    sync.replace("profile/worker-1.json", packed("new"))
    assert (tmp_path / "profile" / "worker-1.json").read_text() == "new"


@pytest.mark.parametrize(
    "path", ["manifest.json", "events/../status.json", "/etc/passwd", "logs/.x", "checkpoints/a"]
)
def test_a_machine_cannot_write_elsewhere(sync: LogSync, path: str) -> None:
    with pytest.raises(LaunchError, match="not of its run"):
        sync.append(path, packed("x"))
