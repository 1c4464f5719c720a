"""Lay out spans on the rows of a timeline: phases of steps in time, rows by process.

Between `trace`, which knows events, and `chrome`, which knows the format. A step is stamped at its
end and records the duration of each phase, so it is laid out backwards from its stamp. Under a
strategy that computes while a push is in flight, a step ends with the reply to its push, and the
next step has been computed before that: `OverlappedSteps` restores their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from phalanx.export.chrome import TraceWriter
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
    """All rows of a run.

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
            writer.name_process(pid, name, order=pid)

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
            self._writer.span(pid, row, span.name, begin_ns, end_ns, args)
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
        self._writer.instant(pid, WORK, name, at_ns, args, everywhere=everywhere)

    def counter(self, owner: str, name: str, at_ns: int, values: Mapping[str, float]) -> None:
        """Write a counter of a process, or of a machine, which gets separate rows."""
        pid = self._pids.get(owner)
        if pid is None:
            pid = self._pids[owner] = len(self._pids) + 1
            self._writer.name_process(pid, owner, order=pid)
        self._writer.counter(pid, name, at_ns, values)

    def _name_row(self, pid: int, row: int) -> None:
        if (pid, row) not in self._rows:
            self._rows.add((pid, row))
            self._writer.name_row(pid, row, _ROWS[row])


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
