"""Write a run as a timeline with all processes on one clock (`phalanx trace`).

Every process is a group of rows: activity (start-up, steps with their phases), overlapped exchange,
evaluations, checkpoints, and its counters; every machine has its counters. All logs are read side
by side, step by step, because only comparing the workers of a group separates waiting from
communication; nothing is kept, so memory does not grow with the length of a run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from phalanx.errors import SpecError
from phalanx.export.counters import between, host_figures, process_figures, served_figures
from phalanx.export.timeline import (
    BEHIND,
    CHECKPOINTS,
    CONTROLLER,
    EVALUATIONS,
    MARKERS,
    WORK,
    AttemptClocks,
    OverlappedSteps,
    Span,
    TraceTimeline,
    TraceWriter,
    lay_out,
)
from phalanx.records.events import (
    AnyEvent,
    Checkpoint,
    Decision,
    Epoch,
    Evaluation,
    Failure,
    Finished,
    HostSample,
    ProcessSample,
    Refused,
    Resumed,
    Served,
    ServerRestored,
    Stall,
    Started,
    Step,
    Warned,
)
from phalanx.records.log import read_events
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir
from phalanx.spec.kinds import STRATEGIES

_STALLS = {"work": "waiting for work", "round": "round without samples", "settle": "synchronize"}


class ProcessEvents:
    """Writes the events of one process.

    Args:
        timeline: The timeline to write to.
        process: Name of the process.
    """

    def __init__(self, timeline: TraceTimeline, process: str) -> None:
        self._timeline = timeline
        self.process = process
        self.attempt = 1
        self._lr: float | None = None
        self._sampled: dict[str, ProcessSample | HostSample] = {}
        self._served: Served | None = None

    def write(self, event: AnyEvent) -> None:
        """Write one event; of a step only its counters, of a start or stall nothing."""
        if isinstance(event, MARKERS):
            self.attempt = event.attempt
        match event:
            case Step():
                self._count(event)
            case Evaluation():
                title = f"measure {event.part}"
                measured = {"loss": event.loss, "accuracy": event.accuracy}
                self._span(EVALUATIONS, title, event, event.duration_s, measured)
            case Checkpoint():
                file = {"path": event.path, "size_bytes": event.size_bytes}
                self._span(CHECKPOINTS, "checkpoint", event, event.duration_s, file)
            case ProcessSample() | HostSample():
                self._sample(event)
            case Served():
                for name, values in served_figures(event, self._served):
                    self._timeline.counter(self.process, name, self._now(event), values)
                self._served = event
            case Epoch():
                self._instant(f"epoch {event.epoch + 1} done", event)
            case Decision():
                self._instant(f"decision: {event.what}", event, everywhere=True)
            case Failure():
                self._instant(f"failure: {event.cause}", event, everywhere=True)
            case Warned() | Resumed() | ServerRestored() | Refused() | Finished():
                self._instant(type(event).__name__.lower(), event)

    def write_idle(self, event: Started | Stall, attempt: int, wait_s: float) -> None:
        """Write a span of start-up or of a stall.

        Called in turn with steps, which share the row and are written later than they are read.
        """
        if isinstance(event, Started):
            name, duration_s, args = "start-up", event.startup_s, {}
        else:
            name, duration_s = _STALLS.get(event.what, event.what), event.duration_s
            args = {"waiting_s": wait_s}
        span = Span(name, event.mono_s - duration_s, event.mono_s)
        self._timeline.span(self.process, attempt, WORK, span, args)

    def _span(
        self, row: int, name: str, event: AnyEvent, duration_s: float, args: Mapping[str, object]
    ) -> None:
        span = Span(name, event.mono_s - duration_s, event.mono_s)
        self._timeline.span(self.process, self.attempt, row, span, args)

    def _instant(self, name: str, event: AnyEvent, *, everywhere: bool = False) -> None:
        args = {key: value for key, value in msgspec.to_builtins(event).items() if key != "kind"}
        self._timeline.instant(self.process, self._now(event), name, args, everywhere=everywhere)

    def _count(self, step: Step) -> None:
        now = self._now(step)
        if step.divisor > 0:
            values = {"loss": step.loss_sum / step.divisor}
            self._timeline.counter(self.process, "training loss", now, values)
        if step.lr != self._lr:
            self._lr = step.lr
            self._timeline.counter(self.process, "learning rate", now, {"lr": step.lr})

    def _sample(self, sample: ProcessSample | HostSample) -> None:
        owner = f"machine {sample.host}" if isinstance(sample, HostSample) else self.process
        before, self._sampled[owner] = self._sampled.get(owner), sample
        for stretch in between(before, sample):
            assert before is not None
            figures = (
                host_figures(stretch, len(sample.core_busy_s))
                if isinstance(sample, HostSample)
                else process_figures(stretch)
            )
            for name, values in figures:
                # A counter holds from its stamp on, so an interval is stamped at its start.
                self._timeline.counter(owner, name, self._now(before), values)

    def _now(self, event: AnyEvent) -> int:
        return self._timeline.at_ns(self.process, self.attempt, event.mono_s)


_ROLES = (CONTROLLER, "worker", "server", "evaluator")
# The exchange at the end of an epoch comes after those of all its steps.
_AFTER_STEPS = 1 << 62


class TraceFacts(msgspec.Struct, kw_only=True):
    """Counts of the written timeline."""

    path: str
    events: int
    size_bytes: int


class _Part(msgspec.Struct, frozen=True):
    """An entry on the activity row of a process, written in the order of keys."""

    key: tuple[int, ...]
    """Attempt, epoch and step; equal for what workers of a group did together."""
    process: str
    event: Step | Stall | Started
    spans: list[Span] | None = None
    """Spans of its phases, if they are laid out already."""


def write_trace(run: RunDir, path: Path) -> TraceFacts:
    """Write the timeline of a run; a file whose name ends in .gz is compressed.

    Raises:
        StoreError: The file cannot be written.
    """
    logs = {log.stem: log for log in sorted((run.path / "events").glob("*.jsonl"), key=_order)}
    strategy = read_manifest(run).job["strategy"]
    about = {"run": run.name, "strategy": strategy["name"], "clock": "the controller's"}
    with TraceWriter(path, about=about) as writer:
        _Trace(TraceTimeline(writer, AttemptClocks(logs), logs), strategy).write(logs)
    return TraceFacts(path=str(path), events=writer.num_events, size_bytes=path.stat().st_size)


def _order(path: Path) -> tuple[int, int, str]:
    role, _, rank = path.stem.partition("-")
    place = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return place, int(rank) if rank.isdigit() else 0, path.stem


class _Trace:
    """Writes one run to a timeline."""

    def __init__(self, timeline: TraceTimeline, strategy: Mapping[str, Any]) -> None:
        self._timeline = timeline
        self._writers: dict[str, ProcessEvents] = {}
        self._apply_first = _applies_first(strategy["name"])
        phases = [phase["strategy"] for phase in strategy.get("phases") or ()]
        self._overlap = any(part.get("overlap") is True for part in (strategy, *phases))

    def write(self, logs: Mapping[str, Path]) -> None:
        self._writers = {name: ProcessEvents(self._timeline, name) for name in logs}
        ways = [self._read(name, path) for name, path in logs.items()]
        for _, group in groupby(heapq.merge(*ways, key=attrgetter("key")), key=attrgetter("key")):
            parts = list(group)
            compared = [one.event for one in parts if not isinstance(one.event, Started)]
            shortest_s = min((event.exchange_s for event in compared), default=0.0)
            for one in parts:
                self._write(one, shortest_s)

    def _write(self, part: _Part, shortest_s: float) -> None:
        event, process, attempt = part.event, part.process, part.key[0]
        wait_s = 0.0
        if not isinstance(event, Started):
            wait_s = event.exchange_s - shortest_s if event.wait_s is None else event.wait_s
        if not isinstance(event, Step):
            self._writers[process].write_idle(event, attempt, wait_s)
        elif part.spans is not None:
            self._spans(process, attempt, event, part.spans)
        else:
            self._step(process, attempt, event, wait_s)

    def _read(self, process: str, path: Path) -> Iterator[_Part]:
        """Write events that need no comparison; yield those to be compared or written in order.

        Keys never decrease within a log. Steps with servers have no order among processes: they
        follow the preceding events of their process.
        """
        writer, overlapped = self._writers[process], OverlappedSteps()
        place, last, count = list(self._writers).index(process), (1, -1, 0), 0
        for event in read_events(path):
            writer.write(event)
            if not isinstance(event, Step | Stall | Started):
                continue
            if isinstance(event, Started):
                last = (writer.attempt, -1, 0)
            elif event.wait_s is None:
                step = event.step if isinstance(event, Step) else _AFTER_STEPS
                last = (writer.attempt, event.epoch, step)
                yield _Part((*last, -1, 0), process, event)
                continue
            count += 1
            key = (*last, place, count)
            if self._overlap and isinstance(event, Step):
                for step_of, spans in overlapped.add(event):
                    yield _Part(key, process, step_of, spans)
            else:
                yield _Part(key, process, event)
        for step_of, spans in overlapped.finish():
            yield _Part((*last, place, count + 1), process, step_of, spans)

    def _step(self, process: str, attempt: int, step: Step, wait_s: float) -> None:
        begin_s, spans = lay_out(step, wait_s, apply_first=self._apply_first)
        whole = Span(f"step {step.step}", begin_s, step.mono_s)
        outer = self._timeline.span(process, attempt, WORK, whole, _about(step))
        for one in spans:
            if one.beside:
                self._timeline.span(process, attempt, BEHIND, one)
            else:
                self._timeline.span(process, attempt, WORK, one, inside=outer)

    def _spans(self, process: str, attempt: int, step: Step, spans: list[Span]) -> None:
        """Write the phases of a step that is interleaved with another one."""
        for one in spans:
            row = BEHIND if one.beside else WORK
            self._timeline.span(process, attempt, row, one, {"step": step.step} | _about(step))


def _about(step: Step) -> dict[str, object]:
    return {"epoch": step.epoch + 1, "samples": step.num_samples, "sent_bytes": step.sent_bytes}


def _applies_first(strategy: str) -> bool:
    try:
        return STRATEGIES.find(strategy).spec.applies_before_exchange
    except SpecError:
        # A strategy of a package that is not installed here: drawn like the others.
        return False
