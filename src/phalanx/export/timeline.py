"""Lay out spans on the rows of a timeline, on one clock, and write the file; `trace` knows events.

A step is stamped at its end and records the duration of each phase, so it is laid out backwards
from its stamp. Under a strategy that computes while a push is in flight, a step ends with the reply
to its push, and the next one has been computed before that: `OverlappedSteps` restores the order.

All processes and attempts share the controller's clock, from its start. Within an attempt
`records.attempts.RunClock` converts a process's monotonic time to it. A resumed run has another
controller, maybe after a reboot; the difference between its wall time and its monotonic time joins
the attempts.

The file has the format of ui.perfetto.dev and chrome://tracing, one JSON object per line inside one
list, so line-based tools can read it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, cast

import msgspec

from phalanx.errors import StoreError
from phalanx.records.attempts import RunClock
from phalanx.records.events import (
    AnyEvent,
    Clock,
    HostSample,
    ProcessSample,
    Started,
    Step,
    Watching,
)
from phalanx.records.log import read_events


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


MARKERS = (Started, Clock, ProcessSample, Watching, HostSample)
"""Events that name the attempt that they and those after them belong to."""
CONTROLLER = "controller"


class AttemptClocks:
    """Converts times of all processes and attempts, from the markers of all logs.

    Args:
        logs: The event log of each process.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._clocks: dict[tuple[str, int], RunClock] = {}
        self._first: dict[tuple[str, int], AnyEvent] = {}
        earliest: dict[int, float] = {}
        for process, path in logs.items():
            self._read(process, read_events(path, *MARKERS), earliest)
        self._shift_s = self._join(earliest)
        self._origin_s = min(
            (earliest[attempt] + self._shift_s[attempt] for attempt in earliest), default=None
        )

    def _read(self, process: str, events: Iterable[AnyEvent], earliest: dict[int, float]) -> None:
        clocks: dict[int, list[AnyEvent]] = {}
        starts: dict[int, float] = {}
        for event in events:
            assert isinstance(event, MARKERS)
            if (process, event.attempt) not in self._first:
                self._first[process, event.attempt] = event
            begin_s = event.mono_s
            if isinstance(event, Started):
                begin_s -= event.startup_s
            starts[event.attempt] = min(begin_s, starts.get(event.attempt, begin_s))
            if isinstance(event, Clock):
                clocks.setdefault(event.attempt, []).append(event)
        for attempt, begin_s in starts.items():
            clock = RunClock(clocks.get(attempt, []))
            self._clocks[process, attempt] = clock
            begin_s = clock.at(begin_s)
            earliest[attempt] = min(begin_s, earliest.get(attempt, begin_s))

    def _join(self, earliest: Mapping[int, float]) -> dict[int, float]:
        """Return the offset from each attempt's controller time to the first attempt's."""
        bases = {attempt: self._base(attempt) for attempt in sorted(earliest)}
        first = next(iter(bases.values()), 0.0)
        # Without a reboot both attempts read the same monotonic clock, and wall time was adjusted
        # by less than this.
        return {
            attempt: 0.0 if abs(base - first) < 0.5 else base - first
            for attempt, base in bases.items()
        }

    def _base(self, attempt: int) -> float:
        """Return wall time minus the controller's monotonic time in an attempt."""
        firsts = {p: event for (p, number), event in self._first.items() if number == attempt}
        process = CONTROLLER if CONTROLLER in firsts else next(iter(firsts))
        event = firsts[process]
        return event.wall_s - self._clocks[process, attempt].at(event.mono_s)

    def at_ns(self, process: str, attempt: int, mono_s: float) -> int:
        """Return nanoseconds since the start of the run."""
        clock = self._clocks.get((process, attempt))
        time_s = mono_s if clock is None else clock.at(mono_s)
        if self._origin_s is None:
            # A run that failed before any process had joined.
            self._origin_s = time_s
        return max(0, round((time_s + self._shift_s.get(attempt, 0.0) - self._origin_s) * 1e9))


WORK, BEHIND, EVALUATIONS, CHECKPOINTS = 1, 2, 3, 4
_ROWS = {
    WORK: "work",
    BEHIND: "overlapped communication",
    EVALUATIONS: "evaluation",
    CHECKPOINTS: "checkpoints",
}


class TraceTimeline:
    """All rows of a run; times are written in microseconds with three digits.

    Args:
        writer: The trace file.
        clocks: Conversion to the time of the run.
        processes: All processes, in the order in which they are shown.
    """

    def __init__(
        self, writer: TraceWriter, clocks: AttemptClocks, processes: Iterable[str]
    ) -> None:
        self._writer = writer
        self._clocks = clocks
        self._pids = {name: number for number, name in enumerate(processes, 1)}
        self._rows: set[tuple[int, int]] = set()
        self._ends: dict[tuple[int, int], int] = {}
        for name, pid in self._pids.items():
            self._name_process(pid, name)

    def at_ns(self, process: str, attempt: int, mono_s: float) -> int:
        """Return nanoseconds since the start of the run."""
        return self._clocks.at_ns(process, attempt, mono_s)

    def span(
        self,
        process: str,
        attempt: int,
        row: int,
        span: Span,
        args: Mapping[str, object] | None = None,
        *,
        inside: tuple[int, int] | None = None,
    ) -> tuple[int, int]:
        """Write a span and return its bounds.

        Rounding and clock error must not make spans of a row cross: each begins no earlier than the
        one before it ends, or is clipped to its parent.
        """
        pid = self._pids[process]
        begin_ns = self.at_ns(process, attempt, span.begin_s)
        end_ns = self.at_ns(process, attempt, span.end_s)
        if inside is None:
            begin_ns = max(begin_ns, self._ends.get((pid, row), 0))
            self._ends[pid, row] = end_ns = max(begin_ns, end_ns)
        else:
            begin_ns, end_ns = (min(max(ns, inside[0]), inside[1]) for ns in (begin_ns, end_ns))
        if end_ns > begin_ns:
            self._name_row(pid, row)
            times = {"ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
            event = {"ph": "X", "name": span.name, "pid": pid, "tid": row, **times}
            self._writer.write(event | {"args": args} if args else event)
        return begin_ns, end_ns

    def instant(
        self,
        process: str,
        at_ns: int,
        name: str,
        args: Mapping[str, object],
        *,
        everywhere: bool = False,
    ) -> None:
        """Write an event without duration; `everywhere` draws it across all rows."""
        pid = self._pids[process]
        self._name_row(pid, WORK)
        scope = "g" if everywhere else "t"
        event = {"ph": "i", "name": name, "pid": pid, "tid": WORK, "ts": at_ns / 1000, "s": scope}
        self._writer.write(event | {"args": args})

    def counter(self, owner: str, name: str, at_ns: int, values: Mapping[str, float]) -> None:
        """Write a counter, which holds until the next, of a process or of a machine."""
        pid = self._pids.get(owner)
        if pid is None:
            pid = self._pids[owner] = len(self._pids) + 1
            self._name_process(pid, owner)
        event = {"ph": "C", "name": name, "pid": pid, "ts": at_ns / 1000, "args": values}
        self._writer.write(event)

    def _name_process(self, pid: int, name: str) -> None:
        self._describe({"pid": pid}, "process", name, order=pid)

    def _name_row(self, pid: int, row: int) -> None:
        if (pid, row) not in self._rows:
            self._rows.add((pid, row))
            self._describe({"pid": pid, "tid": row}, "thread", _ROWS[row], order=row)

    def _describe(self, place: dict[str, int], what: str, name: str, *, order: int) -> None:
        """Name a group of rows or one row, and set its position."""
        for key, args in (
            (f"{what}_name", {"name": name}),
            (f"{what}_sort_index", {"sort_index": order}),
        ):
            self._writer.write({"ph": "M", "name": key, **place, "args": args})


class Span(NamedTuple):
    """One phase on one row."""

    name: str
    begin_s: float
    end_s: float
    beside: bool = False
    """On the row of communication that overlapped with the computation."""


def lay_out(step: Step, wait_s: float, *, apply_first: bool = False) -> tuple[float, list[Span]]:
    """Return the start of a step, and its phases in the order of time.

    Args:
        step: The recorded step.
        wait_s: The part of the exchange that was waiting for others.
        apply_first: Whether the update precedes the exchange, as in local SGD.
    """
    exchange = [("waiting", wait_s), ("exchange", step.exchange_s - wait_s)]
    apply = [("apply", step.apply_s)]
    tail = [*apply, *exchange] if apply_first else [*exchange, *apply]
    head = [("input", step.input_s), ("forward", step.forward_s), ("backward", step.backward_s)]
    spans = list(_backwards(step.mono_s, [*head, *tail]))
    begin_s = step.mono_s - sum(length for _, length in (*head, *tail))
    computed_s = begin_s + step.input_s + step.forward_s + step.backward_s
    return begin_s, spans + _behind(step, computed_s, step.forward_s + step.backward_s)


class OverlappedSteps:
    """Lay out steps that are computed while the push before them is in flight.

    A step is recorded when its push is answered. If that was awaited after computing the next step,
    the record carries the input time of the next one, and the step can be laid out once the next is
    known; if nothing was computed in between, it carries none. Spans are yielded in the order of
    time, so those of two steps alternate.
    """

    def __init__(self) -> None:
        self._open: Step | None = None
        self._computed_s: float | None = None  # end of the open step's computation, if laid out

    def add(self, following: Step) -> Iterator[tuple[Step, list[Span]]]:
        """Take the next step; yields the spans that are known by now."""
        done, computed_s = self._open, None
        if done is not None:
            yield from self._begin(done, following)
            computed_s = done.mono_s - done.exchange_s
            yield following, _computation(following, computed_s, done.input_s)
            yield done, self._answer(done)
        self._open, self._computed_s = following, computed_s
        if following.input_s == 0:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[Step, list[Span]]]:
        """Yield the remaining spans of the last step."""
        if self._open is not None:
            yield from self._begin(self._open, None)
            yield self._open, self._answer(self._open)
            self._open, self._computed_s = None, None

    def _begin(self, step: Step, following: Step | None) -> Iterator[tuple[Step, list[Span]]]:
        """Yield the computation of the first step after a pause, which precedes all else."""
        if self._computed_s is None:
            later_s = step.input_s
            if step.input_s > 0 and following is not None:
                later_s += following.forward_s + following.backward_s
            self._computed_s = step.mono_s - step.exchange_s - later_s
            yield step, _computation(step, self._computed_s, 0.0)

    def _answer(self, step: Step) -> list[Span]:
        """Return the wait for the reply to a push, and the overlapped push before it."""
        assert self._computed_s is not None
        wait_s = step.wait_s or 0.0
        begin_s = step.mono_s - step.exchange_s
        parts = [("waiting", wait_s), ("exchange", step.exchange_s - wait_s)]
        behind = _behind(step, begin_s, begin_s - self._computed_s)
        return [*_backwards(step.mono_s, parts), *behind]


def _computation(step: Step, end_s: float, input_s: float) -> list[Span]:
    parts = [("input", input_s), ("forward", step.forward_s), ("backward", step.backward_s)]
    return list(_backwards(end_s, parts))


def _behind(step: Step, end_s: float, longest_s: float) -> list[Span]:
    length_s = min(step.overlapped_s, longest_s)
    if length_s <= 0:
        return []
    return [Span("overlapped exchange", end_s - length_s, end_s, beside=True)]


def _backwards(end_s: float, parts: list[tuple[str, float]]) -> Iterator[Span]:
    """Yield consecutive spans, the last ending at `end_s`; empty ones are left out."""
    begin_s = end_s - sum(length for _, length in parts)
    for name, length in parts:
        if length > 0:
            yield Span(name, begin_s, begin_s + length)
        begin_s += length
