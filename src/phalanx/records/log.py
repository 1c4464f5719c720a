"""Write the append-only event log of one process, and read it.

Recording an event never touches the disk: it is encoded into a buffer that a background thread
writes twice a second. A disk error surfaces at the next `record` or at the end, so that a full disk
ends the run with its cause instead of losing events silently.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from phalanx.errors import StoreError, printable
from phalanx.records.events import AnyEvent, Epoch, Event

FLUSH_INTERVAL_S = 0.5
_TAIL_BYTES = 64 * 1024


class EventLog:
    """Writes the events of this process to one file; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EventLog:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if ends_torn(self.path):
            # A killed process left a partial line; the next event must not become part of it.
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
        """Stamp and buffer an event; raises `StoreError` if an earlier one could not be written.

        Args:
            event: The event.
            age_s: Seconds since it happened, if it is recorded late.
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
        """Write everything recorded so far to the file now."""
        self._write_out()
        self._raise_if_broken()

    def append_last(self, event: Event) -> None:
        """Write a final event after the log was closed; dropped on a disk error."""
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
                with self.path.open("ab") as file:
                    file.write(chunk)
            except OSError as error:
                self._error = error

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise StoreError(
                f"cannot write the event log {self.path}: {self._error.strerror}; "
                "free some space or choose another directory with --runs",
                path=str(self.path),
            ) from self._error


def ends_torn(path: Path) -> bool:
    """Tell whether a killed process left the last line of a file without its end."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        # No file yet, or an empty one.
        return False


def read_tail(path: Path, num_lines: int) -> str:
    """Return the last lines of a text file, reading no more than its end; empty: there is none.

    Control characters are shown by their numbers. A line longer than the end that is read appears
    without its beginning.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
    # Split afterwards: the returns of a progress bar become line breaks.
    return "\n".join(printable(text).splitlines()[-num_lines:])


def read_events(path: Path, *kinds: type[Event]) -> Iterator[AnyEvent]:
    """Yield all complete events of a log, oldest first; stops at a line cut off by a crash.

    Args:
        path: The log; if there is none, there are no events.
        kinds: Only these, if any are named: the others are skipped without being decoded, which
            makes reading a long run several times as fast.
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
                # A crash leaves a partial line in the middle when a resumed process appends.
                continue


def read_logs(folder: Path, *kinds: type[Event]) -> dict[str, list[AnyEvent]]:
    """Read the events of every process of a run, by process.

    Args:
        folder: The run directory's `events`.
        kinds: Only these, if any are named.
    """
    return {path.stem: list(read_events(path, *kinds)) for path in sorted(folder.glob("*.jsonl"))}


def epoch_rates(epochs: Sequence[Epoch]) -> list[float | None]:
    """Return samples per second of each epoch, whose events hold running totals."""
    found: list[float | None] = []
    before_s, before_samples = 0.0, 0
    for event in epochs:
        seconds, samples = event.train_s - before_s, event.samples - before_samples
        before_s, before_samples = event.train_s, event.samples
        found.append(samples / seconds if seconds > 0 else None)
    return found
