"""Let one controller at a time own a run directory, also on a file system that machines share.

    lock     locked by the owner (flock), and holds who it is and a number that it counts up

The kernel gives the lock up when the owner ends, however it ends. Network file systems may not pass
it on to other machines, so an owner elsewhere is believed as long as its number moves; clocks are
never compared. One whose number stood still for `WATCH_S` lost the directory: it finds another name
in the file before its next change of state and ends its run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from phalanx.errors import StoreError
from phalanx.records.identity import ProcessIdentity

LOCK = "lock"
BEAT_S = 5.0
# Long enough for four beats: a file system may show a change late.
WATCH_S = 20.0
_LOOK_S = 0.5


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns a run directory, and that it is alive."""

    process: ProcessIdentity
    since: str
    """Time of day, for people."""
    beat: int = 0
    """Counted up while the owner lives."""


def read_owner(path: Path) -> OwnerRecord | None:
    """Read who owns a run directory or did last; None: it was given back, or never owned."""
    return _decode(_content(path))


def _content(path: Path) -> bytes | None:
    try:
        return (path / LOCK).read_bytes()
    except OSError:
        return None


def _decode(content: bytes | None) -> OwnerRecord | None:
    try:
        return msgspec.json.decode(content or b"", type=OwnerRecord)
    except msgspec.DecodeError:
        return None


class RunOwner:
    """Owns a run directory from `__enter__` to `__exit__`.

    Args:
        run: The run directory.
        beat_s: Seconds between two beats.
        watch_s: How long an owner on another machine is watched for a beat.
        wait: Waits between two looks; returns whether to give up.
    """

    def __init__(
        self,
        run: Path,
        *,
        beat_s: float = BEAT_S,
        watch_s: float = WATCH_S,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._run = run
        self._beat_s = beat_s
        self._watch_s = watch_s
        self._wait = wait
        self._descriptor = -1
        self._record = OwnerRecord(
            process=ProcessIdentity.here(), since=datetime.now().isoformat(timespec="seconds")
        )
        self._closing = threading.Event()
        self._is_usurped = False
        # A stalled disk must not keep the process from ending.
        self._thread = threading.Thread(target=self._beat, name="run-owner", daemon=True)

    def __enter__(self) -> RunOwner:
        try:
            self._descriptor = os.open(self._run / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot lock the run directory {self._run}: {error.strerror}", path=str(self._run)
            ) from error
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(self._beat_s)
        if not self._is_usurped:
            # Given back in words too: other machines need not watch a number that stands still.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def check(self) -> None:
        """Raise `StoreError` if another controller has taken the run over meanwhile."""
        if self._is_usurped:
            raise StoreError(
                f"run {self._run.name} was taken over by another controller, because this one was "
                "not heard of for a while",
                path=str(self._run),
            )

    def _take(self) -> None:
        is_locked = self._lock()
        content = _content(self._run)
        held = _decode(content)
        if held is not None and self._may_live(held, content):
            raise self._refusal(held)
        self._write()
        if not is_locked:
            # Whoever wrote last of those who came at the same time has it.
            self._wait(_LOOK_S)
        now = read_owner(self._run)
        if now is None or now.process != self._record.process:
            raise self._refusal(now)

    def _lock(self) -> bool:
        """Take the lock; False: the file system has none, and the record alone decides."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(read_owner(self._run)) from None
        except OSError:
            return False
        return True

    def _may_live(self, held: OwnerRecord, content: bytes | None) -> bool:
        """Return whether a former owner, whose lock is free as seen from here, is still there."""
        if held.process.is_on_this_system:
            return held.process.is_alive_here and held.process != self._record.process
        if held.process.host == self._record.process.host:
            return False  # this machine was started again since
        waited_s = 0.0
        while waited_s < self._watch_s:
            self._wait(_LOOK_S)
            waited_s += _LOOK_S
            now = _content(self._run)
            if not now:
                return False  # given back
            if now != content:
                return True
        return False

    def _refusal(self, held: OwnerRecord | None) -> StoreError:
        who = _describe(held) if held is not None else "another process"
        return StoreError(
            f"run {self._run.name} is still running: {who} owns it; wait for it or end it first",
            path=str(self._run),
        )

    def _beat(self) -> None:
        while not self._closing.wait(self._beat_s):
            content = _content(self._run)
            now = _decode(content)
            # An empty file: who took it over has given it back.
            if content == b"" or (now is not None and now.process != self._record.process):
                self._is_usurped = True
                return
            self._record = msgspec.structs.replace(self._record, beat=self._record.beat + 1)
            # A full or broken disk is reported by those who write what matters.
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        content = msgspec.json.encode(self._record)
        # Of one length, so that a reader never sees the end of a longer record before it.
        os.pwrite(self._descriptor, content.ljust(1024) + b"\n", 0)


def _describe(owner: OwnerRecord) -> str:
    one = owner.process
    return f"process {one.pid} on {one.host}, since {owner.since},"
