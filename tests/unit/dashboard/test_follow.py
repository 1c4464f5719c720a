"""Reading a growing file in pieces gives what reading it whole gives."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.dashboard.follow import LogFollower, read_text_from
from phalanx.records.events import AnyEvent, Decision, Failure, Stall, Warned
from phalanx.records.log import read_events

words = st.text(max_size=30)
events = st.one_of(
    st.builds(Warned, message=words),
    st.builds(Decision, what=words, reason=words),
    st.builds(Failure, rank=st.none(), cause=words),
    st.builds(Stall, epoch=st.integers(0, 9), what=words, duration_s=st.floats(0, 9)),
)
lines = st.one_of(
    events.map(lambda event: msgspec.json.encode(event) + b"\n"),
    # What a killed process leaves, what a newer version writes, and what nobody should.
    st.sampled_from([b'{"kind":"war', b"\n", b'{"kind":"unknown"}\n', b"\xff\xfe\n", b"[]\n"]),
)


@given(st.lists(lines, max_size=12), st.lists(st.integers(1, 200), max_size=12), st.integers(1, 99))
def test_pieces_are_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], cuts: list[int], chunk: int
) -> None:
    content = b"".join(parts)
    path = tmp_path_factory.mktemp("log") / "worker-0.jsonl"
    follower = LogFollower(path)
    found: list[AnyEvent] = []
    written = 0
    for cut in [*cuts, len(content)]:
        with path.open("ab") as file:
            file.write(content[written : written + cut])
        written = min(written + cut, len(content))
        before = -1
        while follower.offset != before:
            before = follower.offset
            found += follower.read(chunk)
    assert found == list(read_events(path))
    assert not follower.was_replaced


def test_nothing_is_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(msgspec.json.encode(Warned(message="a")) + b"\n")
    follower = LogFollower(path)
    assert len(follower.read()) == 1
    offset = follower.offset
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(msgspec.json.encode(Warned(message="b")) + b"\n")
    assert [event.message for event in follower.read() if isinstance(event, Warned)] == ["b"]
    assert follower.offset == path.stat().st_size > offset


def test_a_shorter_file_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(2 * (msgspec.json.encode(Warned(message="a")) + b"\n"))
    follower = LogFollower(path)
    follower.read()
    path.write_bytes(b"\n")
    assert follower.read() == []
    assert follower.was_replaced


@given(st.text(max_size=60), st.integers(1, 7))
def test_text_comes_in_pieces_that_never_cut_a_character(
    tmp_path_factory: pytest.TempPathFactory, text: str, step: int
) -> None:
    text = "".join(one for one in text if one.isprintable())
    content = text.encode()
    path = tmp_path_factory.mktemp("log") / "worker-0.log"
    path.write_bytes(b"")
    found, offset = "", None
    for end in [*range(step, len(content), step), len(content)]:
        path.write_bytes(content[:end])
        piece = read_text_from(path, offset)
        assert piece.is_new_file == (offset is None)
        found, offset = found + piece.text, piece.next
    assert found == text


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_bytes(b"x" * 1000 + b"\x1b[31mend")
    piece = read_text_from(path, None, max_bytes=20)
    assert piece.text == "x" * 12 + "\\x1b[31mend"
    assert read_text_from(path, 10, max_bytes=20).is_new_file
    assert read_text_from(path, 5000, max_bytes=20).is_new_file
