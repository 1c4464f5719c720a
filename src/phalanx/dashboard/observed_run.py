"""Hold the state of a run that follows from the events read so far; events in, figures out.

Called by `live_run`, which reads; `run_sections` and `machine_sections` describe it. Times are
seconds since the run began, on the controller's clock. Memory does not grow with the length of the
run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.dashboard.event_lines import Line, line_of
from phalanx.dashboard.exchange import ExchangeSplitter
from phalanx.dashboard.series import PhaseSums, StepSeries, halve
from phalanx.records.events import (
    AnyEvent,
    Clock,
    Epoch,
    Evaluation,
    HostSample,
    Placed,
    ProcessSample,
    Served,
    Stall,
    Started,
    Step,
    Switched,
    Warned,
    Watching,
)
from phalanx.wire.server_stats import ServerStats

MAX_LINES = 400
MAX_EPOCHS = 2000


@dataclass(frozen=True)
class HostPoint:
    """One sample of a machine: totals since it booted, and levels."""

    time_s: float
    attempt: int
    busy_s: float
    cores: int
    memory_bytes: int
    memory_total_bytes: int
    received_bytes: int
    sent_bytes: int
    energy_j: float | None
    energy_source: str
    load: float


@dataclass
class ProcessTime:
    """Relates the clock of one process to the controller's."""

    attempt: int = 1
    offset_s: float = 0.0

    def take(self, event: AnyEvent) -> None:
        """Note the attempt, and the offset of the clock."""
        if isinstance(event, Started | Clock | Watching | HostSample | ProcessSample):
            self.attempt = event.attempt
        if isinstance(event, Clock):
            # As in `records.attempts`: an offset within its error is none.
            self.offset_s = event.offset_s if abs(event.offset_s) > event.error_s else 0.0


class ObservedRun:
    """What the records of one run say.

    Args:
        num_workers: Workers of the job.
    """

    def __init__(self, num_workers: int) -> None:
        self.steps = StepSeries()
        self.exchange = ExchangeSplitter(num_workers, self.steps.add)
        self.epochs: dict[int, Epoch] = {}
        self.evaluations: dict[tuple[str, int], Evaluation] = {}
        self.hosts: dict[str, list[HostPoint]] = {}
        self.processes: dict[str, Started] = {}
        self.servers: dict[int, ServerStats] = {}
        self.switches: list[tuple[float, Switched]] = []
        self.lines: deque[Line] = deque(maxlen=MAX_LINES)
        self.faults: deque[Line] = deque(maxlen=MAX_LINES)
        self.warnings: dict[str, None] = {}
        self.placed: Placed | None = None
        self.places: dict[str, str] = {}
        self.end_s = 0.0

    def take(self, process: str, attempt: int, time_s: float, event: AnyEvent) -> None:
        """Take one event of a process."""
        self.end_s = max(self.end_s, time_s)
        taker = _TAKERS.get(type(event))
        if taker is not None:
            taker(self, process, attempt, time_s, event)
        line = line_of(process, time_s, event)
        if line is not None:
            self.lines.append(line)
            if line.mark == "doubt" and not isinstance(event, Warned):
                self.faults.append(line)

    def finish(self) -> None:
        """Take note that no event will follow."""
        self.exchange.finish()


def _take_step(state: ObservedRun, process: str, attempt: int, time_s: float, event: Step) -> None:
    compute_s = event.forward_s + event.backward_s + event.apply_s
    duration_s = event.input_s + compute_s + event.exchange_s
    sums = PhaseSums(
        samples=event.num_samples,
        loss_sum=event.loss_sum,
        correct=event.num_correct,
        steps=event.num_steps,
        input_s=event.input_s,
        compute_s=compute_s,
    )
    state.steps.add(process, time_s - duration_s, time_s, sums)
    state.steps.note_rate(time_s, event.lr)
    state.exchange.take(process, attempt, event, time_s)


def _take_stall(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Stall
) -> None:
    state.exchange.take(process, attempt, event, time_s)


def _take_host(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: HostSample
) -> None:
    if event.phase == "baseline":
        return
    points = state.hosts.setdefault(event.host, [])
    points.append(
        HostPoint(
            time_s=time_s,
            attempt=attempt,
            busy_s=event.cpu_user_s + event.cpu_system_s,
            cores=max(1, len(event.core_busy_s)),
            memory_bytes=event.memory_used_bytes,
            memory_total_bytes=event.memory_total_bytes,
            received_bytes=sum(event.received_bytes.values()),
            sent_bytes=sum(event.sent_bytes.values()),
            energy_j=event.energy_j,
            energy_source=event.energy_source,
            load=event.load_1min,
        )
    )
    halve(points)


def _take_epoch(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Epoch
) -> None:
    # A resumed run repeats an epoch whose checkpoint was not written; the last repeat counts.
    state.epochs[event.epoch] = event
    if len(state.epochs) > MAX_EPOCHS:
        for number in sorted(state.epochs)[1::2]:
            del state.epochs[number]


def _take_evaluation(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Evaluation
) -> None:
    state.evaluations.pop((event.part, event.epoch), None)
    state.evaluations[event.part, event.epoch] = event
    if len(state.evaluations) > MAX_EPOCHS:
        del state.evaluations[next(iter(state.evaluations))]


def _take_started(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Started
) -> None:
    state.processes[process] = event
    state.places[process] = event.host


def _take_served(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Served
) -> None:
    state.servers[event.facts.server] = event.facts


def _take_switched(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Switched
) -> None:
    state.switches.append((time_s, event))


def _take_placed(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Placed
) -> None:
    state.placed = event


def _take_sample(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: ProcessSample
) -> None:
    if event.host:
        state.places[process] = event.host


def _take_warning(
    state: ObservedRun, process: str, attempt: int, time_s: float, event: Warned
) -> None:
    if len(state.warnings) < MAX_LINES:
        state.warnings[event.message] = None


_TAKERS: dict[type, Callable[[ObservedRun, str, int, float, Any], None]] = {
    Step: _take_step,
    Stall: _take_stall,
    HostSample: _take_host,
    Epoch: _take_epoch,
    Evaluation: _take_evaluation,
    Started: _take_started,
    Served: _take_served,
    Switched: _take_switched,
    Placed: _take_placed,
    ProcessSample: _take_sample,
    Warned: _take_warning,
}
