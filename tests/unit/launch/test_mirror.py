from __future__ import annotations

import base64
from pathlib import Path

import pytest

from phalanx.errors import LaunchError
from phalanx.launch.mirror import Mirror


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    for part in ("events", "logs"):
        (tmp_path / part).mkdir()
    return Mirror(tmp_path, "b")


def test_events_arrive_as_they_are(mirror: Mirror, tmp_path: Path) -> None:
    mirror.append("events/worker-1.jsonl", packed('{"a": 1}\n{"b"'))
    mirror.append("events/worker-1.jsonl", packed(": 2}\n"))
    assert (tmp_path / "events" / "worker-1.jsonl").read_text() == '{"a": 1}\n{"b": 2}\n'


def test_every_printed_line_is_prefixed_once_however_it_was_cut(
    mirror: Mirror, tmp_path: Path
) -> None:
    for part in ("one", "\ntw", "o\nthree\n", "\nfo", "ur"):
        mirror.append("logs/worker-1.log", packed(part))
    mirror.finish("worker-1")
    mirror.finish("worker-1")
    lines = (tmp_path / "logs" / "worker-1.log").read_text().splitlines()
    assert lines == [f"[worker-1 b] {text}" for text in ("one", "two", "three", "", "four")]


def test_whole_files_replace(mirror: Mirror, tmp_path: Path) -> None:
    mirror.replace("profile/worker-1.json", packed("old"))
    mirror.replace("profile/worker-1.json", packed("new"))
    assert (tmp_path / "profile" / "worker-1.json").read_text() == "new"


@pytest.mark.parametrize(
    "path", ["manifest.json", "events/../status.json", "/etc/passwd", "logs/.x", "checkpoints/a"]
)
def test_a_machine_cannot_write_elsewhere(mirror: Mirror, path: str) -> None:
    with pytest.raises(LaunchError, match="none of its own"):
        mirror.append(path, packed("x"))
