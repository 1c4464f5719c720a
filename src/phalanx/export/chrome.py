"""Write the trace format of ui.perfetto.dev and chrome://tracing; streams.

Knows files, not runs: `timeline` makes the events. One JSON object per line inside one list, so
line-based tools can read the file.
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


class TraceWriter:
    """Writes one trace file, compressed if its name ends in .gz; use as a context manager.

    The file appears under its name when it is complete; after an error there is none.

    Args:
        path: The file.
        about: Metadata of the whole trace.
    """

    def __init__(self, path: Path, *, about: Mapping[str, object]) -> None:
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

    def write(self, event: Mapping[str, object]) -> None:
        """Write one event in the terms of the format."""
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
