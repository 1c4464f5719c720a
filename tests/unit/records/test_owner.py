"""One owner of a run directory, on this machine and on machines that share it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from phalanx.errors import StoreError
from phalanx.records import owner as owner_module
from phalanx.records.identity import ProcessIdentity, start_ticks
from phalanx.records.owner import LOCK, OwnerRecord, RunOwner, read_owner
from phalanx.records.rundir import RunDir, Status
from support.waiting import wait_until

HERE = ProcessIdentity.here()
ELSEWHERE = msgspec.structs.replace(HERE, host="elsewhere", boot_id="another")


def leave_record(run: Path, process: ProcessIdentity, beat: int = 0) -> None:
    """Leave the directory as an owner that can do no more, or is on another machine."""
    record = OwnerRecord(process=process, since="2026-01-01T12:00:00", beat=beat)
    (run / LOCK).write_bytes(msgspec.json.encode(record).ljust(1024) + b"\n")


def taken(run: Path, **options: object) -> OwnerRecord:
    with RunOwner(run, **options):  # type: ignore[arg-type]
        found = read_owner(run)
        assert found is not None
        return found


def test_a_second_owner_is_refused_with_one_sentence_until_the_first_is_done(
    tmp_path: Path,
) -> None:
    with RunOwner(tmp_path):
        with pytest.raises(StoreError) as caught, RunOwner(tmp_path):
            pass
        assert f"process {os.getpid()} on {HERE.host}" in str(caught.value)
        assert "is still running" in str(caught.value)
    assert taken(tmp_path).process == HERE
    assert read_owner(tmp_path) is None, "given back"


def _own(run: str) -> None:
    with RunOwner(Path(run)):
        os.kill(os.getpid(), 9)


def test_an_owner_that_was_killed_owns_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_own, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    left = read_owner(tmp_path)
    assert left is not None
    assert left.process.pid == process.pid
    assert taken(tmp_path).process == HERE


def test_a_reused_pid_is_not_the_owner(tmp_path: Path) -> None:
    leave_record(tmp_path, msgspec.structs.replace(HERE, pid=1, started=HERE.started + 1))
    assert taken(tmp_path).process == HERE


def test_after_a_reboot_nobody_owns_it(tmp_path: Path) -> None:
    leave_record(tmp_path, msgspec.structs.replace(HERE, boot_id="before"))
    assert taken(tmp_path).process == HERE


def test_an_owner_on_another_machine_is_believed_while_its_number_moves(tmp_path: Path) -> None:
    leave_record(tmp_path, ELSEWHERE, beat=3)
    looks = 0

    def wait(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            leave_record(tmp_path, ELSEWHERE, beat=4)

    with (
        pytest.raises(StoreError, match="on elsewhere, since 2026-01-01T12:00:00"),
        RunOwner(tmp_path, wait=wait),
    ):
        pass
    assert looks == 4


def test_an_owner_on_another_machine_whose_number_stands_still_has_lost_it(tmp_path: Path) -> None:
    leave_record(tmp_path, ELSEWHERE, beat=3)
    waited: list[float] = []
    assert taken(tmp_path, wait=waited.append).process == HERE
    assert sum(waited) == owner_module.WATCH_S


def test_an_owner_that_lost_it_learns_so_and_gives_nothing_back(tmp_path: Path) -> None:
    with RunOwner(tmp_path, beat_s=0.01) as owner:
        owner.check()
        leave_record(tmp_path, ELSEWHERE)
        owner._thread.join(60)
        with pytest.raises(StoreError, match="was taken over"):
            owner.check()
    found = read_owner(tmp_path)
    assert found is not None
    assert found.process == ELSEWHERE


def test_an_owner_counts_up_while_it_lives(tmp_path: Path) -> None:
    def has_moved() -> bool:
        found = read_owner(tmp_path)
        return found is not None and found.beat > 2

    with RunOwner(tmp_path, beat_s=0.01):
        wait_until(has_moved, "three beats")


def test_without_locks_the_record_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert taken(tmp_path, wait=lambda s: None).process == HERE
    other = msgspec.structs.replace(HERE, pid=1, started=start_ticks(1) or 0)
    leave_record(tmp_path, other)
    with pytest.raises(StoreError, match="process 1 on"), RunOwner(tmp_path):
        pass

    def come_second(seconds: float) -> None:
        leave_record(tmp_path, ELSEWHERE)

    (tmp_path / LOCK).unlink()
    with pytest.raises(StoreError, match="on elsewhere"), RunOwner(tmp_path, wait=come_second):
        pass


@pytest.mark.parametrize(
    ("process", "state"),
    [
        (HERE, "running"),
        (msgspec.structs.replace(HERE, started=HERE.started + 1), "lost"),
        (msgspec.structs.replace(HERE, boot_id="before"), "lost"),
        (ELSEWHERE, "running"),
    ],
    ids=["alive", "reused pid", "rebooted", "elsewhere"],
)
def test_the_status_knows_who_runs_it(tmp_path: Path, process: ProcessIdentity, state: str) -> None:
    run = RunDir.create(tmp_path, "job")
    leave_record(run.path, process)
    run.write_status(Status(state="running", pid=process.pid, attempt=1, process=process))
    assert run.read_status().state == state


def test_a_controller_elsewhere_that_is_silent_for_long_is_lost(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "job")
    leave_record(run.path, ELSEWHERE)
    os.utime(run.path / LOCK, (1e9, 1e9))
    run.write_status(Status(state="running", pid=1, attempt=1, process=ELSEWHERE))
    status = run.read_status()
    assert status.state == "lost"
    assert "elsewhere" in str(status.cause)


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        known = msgspec.structs.replace(HERE, pid=child.pid, started=start_ticks(child.pid) or 0)
        assert known.is_alive_here
        child.communicate()
    assert not known.is_alive_here
