"""One slow disk, several machines: who waits for what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from phalanx.errors import StoreError
from phalanx.launch.news_writer import NewsWriter
from support.waiting import wait_until

LIMIT_S = 30.0


class SlowDisk:
    """Takes news only while it is let to."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.written: list[str] = []

    def write(self, news: dict[str, Any]) -> None:
        assert self.free.wait(LIMIT_S)
        self.written.append(news["content"])


@contextmanager
def writing(disk: SlowDisk, max_bytes: int = 1 << 20) -> Iterator[NewsWriter]:
    writer = NewsWriter(max_bytes)
    try:
        with closing(writer):
            yield writer
            disk.free.set()
    finally:
        disk.free.set()


def test_those_who_listen_never_wait_for_the_disk() -> None:
    disk = SlowDisk()
    with writing(disk) as writer:
        for number in range(100):
            writer.put("a", {"content": str(number)}, disk.write)
        assert writer.has_waiting("a")
        assert not writer.has_waiting("b")
        assert disk.written == []
    assert disk.written == [str(number) for number in range(100)], "in order, none lost"


def test_what_waits_is_bounded_per_machine_and_told() -> None:
    disk = SlowDisk()
    with writing(disk, max_bytes=2000) as writer:
        writer.put("a", {"content": "x" * 2000}, disk.write)
        assert writer.is_full("a")
        writer.put("b", {"content": "y"}, disk.write)
        more = threading.Thread(
            target=writer.put, args=("a", {"content": "z"}, disk.write), daemon=True
        )
        more.start()
        assert not writer.is_full("b"), "one machine's flood costs another nothing"
        disk.free.set()
        wait_until(lambda: len(disk.written) == 3, "the rest")
        more.join(LIMIT_S)
    assert not writer.is_full("a")


def test_a_disk_that_refuses_loses_that_news_alone(caplog: pytest.LogCaptureFixture) -> None:
    disk = SlowDisk()

    def refuse(news: dict[str, Any]) -> None:
        raise StoreError("no space left")

    with writing(disk) as writer:
        writer.put("a", {}, refuse)
        writer.put("a", {"content": "x"}, disk.write)
    assert disk.written == ["x"]
    assert "news of a is lost: no space left" in caplog.text
    writer.put("a", {"content": "late"}, disk.write)
    assert disk.written == ["x"], "after the end nobody waits"
