from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest
from typing_extensions import Buffer

from phalanx.errors import StoreError
from phalanx.records.events import (
    Checkpoint,
    Clock,
    Decision,
    Epoch,
    Evaluation,
    Event,
    Failure,
    Finished,
    HostSample,
    ProcessSample,
    Refused,
    Resumed,
    Stall,
    Started,
    Step,
    Warned,
    Watching,
)
from phalanx.records.log import EventLog, read_events, read_logs, read_tail
from support.waiting import wait_until

EVERY_KIND: list[Event] = [
    Clock(offset_s=-3.5, error_s=1e-4),
    Stall(epoch=1, what="settle", duration_s=0.25),
    ProcessSample(
        pid=7,
        cpu_user_s=1.5,
        cpu_system_s=0.5,
        memory_bytes=1 << 20,
        memory_peak_bytes=1 << 21,
        threads=3,
        moment="begin",
        attempt=2,
    ),
    Watching(host="here", cores=2, memory_total_bytes=1, energy_source="", energy_reason="none"),
    HostSample(
        host="here",
        cpu_user_s=1.0,
        cpu_system_s=2.0,
        cpu_idle_s=3.0,
        core_busy_s=[1.0, 2.0],
        load_1min=0.5,
        memory_used_bytes=5,
        memory_total_bytes=9,
        received_bytes={"lo": 1},
        sent_bytes={"lo": 2},
    ),
    Started(
        rank=1,
        role="worker",
        pid=7,
        host="here",
        attempt=1,
        threads=2,
        cpus=[0, 1],
        precision="fp32",
        precision_reason="asked for",
        startup_s=1.5,
    ),
    Step(
        epoch=0,
        step=1,
        num_samples=64,
        loss_sum=147.3,
        num_correct=9,
        lr=0.05,
        input_s=0.1,
        forward_s=0.2,
        backward_s=0.3,
        exchange_s=0.4,
        apply_s=0.5,
        sent_bytes=1000,
    ),
    Epoch(
        epoch=0,
        samples=64,
        updates=1,
        train_loss=2.3,
        train_accuracy=0.1,
        regularisation=0.0,
        val_loss=None,
        val_accuracy=None,
        lr=0.05,
        train_s=1.0,
        evaluate_s=0.0,
    ),
    Evaluation(part="test", epoch=1, num_samples=10, loss=2.0, accuracy=0.2, duration_s=0.1),
    Checkpoint(path="a", epoch=1, samples=64, size_bytes=100, duration_s=0.01),
    Resumed(path="a", epoch=1, samples=64),
    Decision(what="stop", reason="lost", rank=None),
    Failure(rank=0, cause="killed", detail="line 1\nline 2"),
    Warned(message="ünïcode 漢字"),
    Refused(group="workers", reasons={"no proof": 2}),
    Finished(rank=0, state="finished"),
]


def test_every_kind_of_event_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events" / "worker-0.jsonl"
    with EventLog(path) as log:
        for event in EVERY_KIND:
            log.record(event)
    assert list(read_events(path)) == EVERY_KIND
    assert path.read_bytes().count(b"\n") == len(EVERY_KIND)


def test_events_are_stamped_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        for number in range(10):
            log.record(Warned(message=str(number)))
    found = list(read_events(path))
    stamps = [event.mono_s for event in found]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0
    assert found[0].wall_s > 1e9


def test_events_reach_the_file_without_being_asked(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.record(Warned(message="here"))
        wait_until(lambda: path.exists() and path.stat().st_size, "the log to be written")


def test_flush_writes_now(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = EventLog(path)
    log.record(Warned(message="now"))
    assert not path.exists()
    log.flush()
    assert len(list(read_events(path))) == 1


def test_a_torn_last_line_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.record(Warned(message="whole"))
        log.record(Warned(message="also whole"))
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert [event.message for event in read_events(path)] == ["whole"]  # type: ignore[union-attr]


def test_a_resumed_process_may_append_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.record(Warned(message="first"))
    with path.open("ab") as file:
        file.write(b'{"kind":"warned","mess')
    with EventLog(path) as log:
        log.record(Warned(message="second"))
        log.record(Warned(message="last"))
    messages = [event.message for event in read_events(path)]  # type: ignore[union-attr]
    assert messages == ["first", "second", "last"]


def test_no_log_means_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "nothing.jsonl")) == []


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.symlink_to("/dev/full")
    return path


def test_a_full_disk_surfaces_at_the_next_record(full: Path) -> None:
    log = EventLog(full)
    log.record(Warned(message="into the void"))
    with pytest.raises(StoreError, match=r"cannot write the event log .*No space left on device"):
        log.flush()
    with pytest.raises(StoreError, match="free some space or choose another directory"):
        log.record(Warned(message="never recorded"))


def test_a_full_disk_surfaces_at_the_end_if_nothing_is_recorded_after(full: Path) -> None:
    with pytest.raises(StoreError), EventLog(full) as log:
        log.record(Warned(message="into the void"))


def _break_off(full: Path) -> EventLog:
    with EventLog(full) as log:
        log.record(Warned(message="into the void"))
        raise ZeroDivisionError


def test_a_full_disk_does_not_hide_the_error_that_ends_the_log(full: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _break_off(full)


def test_last_words_to_a_full_disk_are_dropped(full: Path) -> None:
    EventLog(full).append_last(Warned(message="dropped without a word"))


def test_last_words_follow_a_closed_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.record(Warned(message="before"))
    log.append_last(Failure(rank=0, cause="after"))
    assert [type(event) for event in read_events(path)] == [Warned, Failure]


def test_only_the_kinds_asked_for_are_read(tmp_path: Path) -> None:
    with EventLog(tmp_path / "worker-0.jsonl") as log:
        for event in EVERY_KIND:
            log.record(event)
    found = read_logs(tmp_path, Step, Clock)
    assert [type(event) for event in found["worker-0"]] == [
        type(event) for event in EVERY_KIND if isinstance(event, Step | Clock)
    ]
    assert len(read_logs(tmp_path)["worker-0"]) == len(EVERY_KIND)


class ShortFile(io.FileIO):
    """A file of which the system takes a few bytes at a time, as on a disk that is nearly full."""

    def write(self, data: Buffer, /) -> int:
        return super().write(bytes(data)[:7])


def open_short(path: Path, mode: str = "r", buffering: int = -1) -> io.IOBase:
    raw = ShortFile(path, mode.replace("b", ""))
    return raw if buffering == 0 else io.BufferedWriter(raw)


def test_a_write_that_the_system_cuts_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "worker-0.jsonl"
    log = EventLog(path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_short)
        log.append_last(Warned(message="x" * 100))
        log.append_last(Warned(message="y" * 100))
    assert [event.message for event in read_events(path) if isinstance(event, Warned)] == [
        "x" * 100,
        "y" * 100,
    ]


def test_a_tail_is_read_from_the_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    assert read_tail(path, 3) == ""
    path.write_text("a\nb\nc\nd\n")
    assert read_tail(path, 3) == "b\nc\nd"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte of nothing, which takes no space
        file.seek(0, 2)
        file.write("\nthe cause é\n".encode())
    tracemalloc.start()
    try:
        assert read_tail(path, 1) == "the cause é"
        # A hundredth of the file; each nothing in the part that is read is shown by its number.
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
