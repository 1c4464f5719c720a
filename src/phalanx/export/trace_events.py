"""Write the events of one process to a timeline: everything but the layout of steps."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.export.clocks import MARKERS
from phalanx.export.counters import between, host_figures, process_figures, served_figures
from phalanx.export.timeline import CHECKPOINTS, EVALUATIONS, WORK, Span, TraceTimeline
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
    Resumed,
    Served,
    ServerRestored,
    Stall,
    Started,
    Step,
    Warned,
)

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
            case Warned() | Resumed() | ServerRestored() | Finished():
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
        if step.num_samples > 0:
            values = {"loss": step.loss_sum / step.num_samples}
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
