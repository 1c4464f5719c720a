"""`phalanx dashboard` without a browser: the file it writes, and what it refuses."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from phalanx.cli.dashboard import dashboard
from phalanx.errors import SpecError
from support.dashboard import JOB, write_small_study
from support.records import Outcome, write_run

HOSTILE = "<img src=x onerror=alert(1)>"


def test_once_writes_the_same_view_as_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, page = tmp_path / "runs", tmp_path / "page.html"
    write_run(root, HOSTILE, JOB, Outcome(warning=HOSTILE))
    write_run(root, "second", JOB, Outcome(epochs=2))
    write_small_study(root / "study")
    dashboard([str(root)], once=page)
    assert str(page) in capsys.readouterr().out.replace("\n", "")
    text = page.read_text()
    assert HOSTILE not in text
    assert "&lt;img src=x" in text
    for title in ("Comparison", "Results so far", "Learning", "Placement"):
        assert title in text
    assert len(set(ids := _ids(text))) == len(ids)


def _ids(text: str) -> list[str]:
    return re.findall(r' id="([^"]+)"', text)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no directory"):
        dashboard([], runs=tmp_path / "nowhere")
    with pytest.raises(SpecError, match="no run 'nobody'"):
        dashboard(["nobody"], runs=tmp_path)


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"cannot listen on 127.0.0.1 port {port}"):
            dashboard([], port=port, runs=tmp_path)
