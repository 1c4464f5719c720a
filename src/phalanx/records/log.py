"""The append-only event log of one process, and its reader.

Recording an event never touches the disk: it is encoded into a buffer that a background thread
hands to the system twice a second. A disk error surfaces at the next `record` or at the end, so
that a full disk ends the run with its cause instead of losing facts silently.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from phalanx.errors import StoreError
from phalanx.records.events import AnyEvent, Event

FLUSH_INTERVAL_S = 0.5


class EventLog:
    """Writes the events of this process to one file; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EventLog:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if _ends_torn(self._path):
            # A killed process left half a line; what follows must not become part of it.
            self._buffer += b"\n"
        self._thread = threading.Thread(target=self._flush_until_closed, name="event-log")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._write_out()
        if kind is None:
            self._raise_if_broken()

    def record(self, event: Event, *, age_s: float = 0.0) -> None:
        """Stamp and keep an event; raises `StoreError` if an earlier one could not be written.

        Args:
            event: What happened.
            age_s: How long ago, if it was learnt of only now.
        """
        if self._error is not None:
            self._raise_if_broken()
        event.wall_s = time.time() - age_s
        event.mono_s = time.monotonic() - age_s
        line = self._encoder.encode(event)
        with self._lock:
            self._buffer += line
            self._buffer += b"\n"

    def flush(self) -> None:
        """Hand everything recorded so far to the system now."""
        self._write_out()
        self._raise_if_broken()

    def append_last(self, event: Event) -> None:
        """Write an event after the log was closed: last words, dropped if the disk refuses them."""
        event.wall_s = time.time()
        event.mono_s = time.monotonic()
        with self._lock:
            self._buffer += self._encoder.encode(event) + b"\n"
        self._write_out()

    def _flush_until_closed(self) -> None:
        while not self._closing.wait(FLUSH_INTERVAL_S):
            self._write_out()

    def _write_out(self) -> None:
        with self._writing:
            with self._lock:
                chunk = bytes(self._buffer)
                self._buffer.clear()
            if not chunk or self._error is not None:
                return
            try:
                with self._path.open("ab", buffering=0) as file:
                    file.write(chunk)
            except OSError as error:
                self._error = error

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise StoreError(
                f"cannot write the event log {self._path}: {self._error.strerror}; "
                "free some space or choose another directory with --runs",
                path=str(self._path),
            ) from self._error


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        # No file yet, or an empty one.
        return False


def read_events(path: Path, *kinds: type[Event]) -> Iterator[AnyEvent]:
    """All whole events of a log, oldest first; a line cut off by a crash ends the reading.

    Args:
        path: The log; if there is none, there are no events.
        kinds: Only these, if any are named: the others are passed over without being decoded, which
            makes the reading of a long run several times as fast.
    """
    decoder = msgspec.json.Decoder(AnyEvent)
    wanted = tuple(b'{"kind":"%s",' % kind.__name__.lower().encode() for kind in kinds)
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            if wanted and not line.startswith(wanted):
                continue
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError:
                # A crash leaves a torn line in the middle when a resumed process appends.
                continue


def read_logs(folder: Path, *kinds: type[Event]) -> dict[str, list[AnyEvent]]:
    """The events of every process of a run, by process.

    Args:
        folder: The run directory's `events`.
        kinds: Only these, if any are named.
    """
    return {path.stem: list(read_events(path, *kinds)) for path in sorted(folder.glob("*.jsonl"))}
