"""Write the trace format of ui.perfetto.dev and chrome://tracing; streams.

Knows the format and nothing of runs: `trace` calls it. One JSON object per line inside one list, so
line-based tools can read the file. Times are taken in seconds and written in microseconds with
three digits.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import cast

import msgspec

from phalanx.errors import StoreError

Values = Mapping[str, object]


class TraceWriter:
    """Writes one trace file, compressed if its name ends in .gz; use as a context manager.

    The file appears under its name when it is complete; after an error there is none.

    Args:
        path: The file.
        about: Metadata of the whole trace.
    """

    def __init__(self, path: Path, *, about: Values) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._about = about
        self._encoder = msgspec.json.Encoder()
        self._separator = b"\n"
        self.num_events = 0

    def __enter__(self) -> TraceWriter:
        try:
            file = self._part.open("wb")
        except OSError as error:
            raise _refusal(self._path, error) from error
        self._raw = file
        # The fastest setting: a trace is mostly repeated words, which shrink twelvefold with it.
        self._file = (
            cast("BufferedIOBase", gzip.GzipFile(self._path.name, "wb", 1, file, mtime=0))
            if self._path.suffix == ".gz"
            else file
        )
        self._put(b'{"displayTimeUnit":"ms","otherData":')
        self._put(self._encoder.encode(self._about))
        self._put(b',"traceEvents":[')
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._put(b"\n]}\n")
            self._file.close()
            self._raw.close()
            if kind is None:
                self._part.replace(self._path)
        except OSError as refusal:
            raise _refusal(self._path, refusal) from refusal
        finally:
            self._raw.close()
            self._part.unlink(missing_ok=True)

    def name_process(self, pid: int, name: str, *, order: int) -> None:
        """Name a group of rows, and set its position."""
        self._write({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        self._write(
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}
        )

    def name_row(self, pid: int, row: int, name: str) -> None:
        """Name one row; rows stand in the order of their numbers."""
        place: dict[str, object] = {"ph": "M", "pid": pid, "tid": row}
        self._write(place | {"name": "thread_name", "args": {"name": name}})
        self._write(place | {"name": "thread_sort_index", "args": {"sort_index": row}})

    def span(
        self, pid: int, row: int, name: str, begin_ns: int, end_ns: int, args: Values | None = None
    ) -> None:
        """Write a span; spans of a row must be nested or disjoint."""
        event: dict[str, object] = {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": row,
            "ts": begin_ns / 1000,
            "dur": (end_ns - begin_ns) / 1000,
        }
        if args:
            event["args"] = args
        self._write(event)

    def instant(
        self, pid: int, row: int, name: str, at_ns: int, args: Values, *, everywhere: bool = False
    ) -> None:
        """Write an event without duration, shown at its row or across all of them."""
        scope = "g" if everywhere else "t"
        self._write(
            {"ph": "i", "name": name, "pid": pid, "tid": row, "ts": at_ns / 1000, "s": scope}
            | {"args": args}
        )

    def counter(self, pid: int, name: str, at_ns: int, values: Mapping[str, float]) -> None:
        """Write a value of a counter, which holds until the next one."""
        self._write({"ph": "C", "name": name, "pid": pid, "ts": at_ns / 1000, "args": values})

    def _write(self, event: dict[str, object]) -> None:
        self._put(self._separator + self._encoder.encode(event))
        self._separator = b",\n"
        self.num_events += 1

    def _put(self, chunk: bytes) -> None:
        try:
            self._file.write(chunk)
        except OSError as error:
            raise _refusal(self._path, error) from error


def _refusal(path: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write {path}: {error.strerror}", path=str(path))
