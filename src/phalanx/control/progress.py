"""Combine the heartbeats of all workers into the progress of the run, for its observers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from phalanx.records.events import Placed, Switched
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochFigures, Progress

_log = logging.getLogger(__name__)

_RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run at one moment, over all workers."""

    epoch: int
    epochs: int
    epoch_share: float
    samples: int
    samples_per_s: float
    loss: float | None
    accuracy: float | None
    lr: float
    activity: str
    elapsed_s: float
    eta_s: float | None
    time_shares: dict[str, float] = field(default_factory=dict)
    epoch_samples: int = 0
    epoch_total: int = 0


@dataclass(frozen=True)
class ProcessLoss:
    """A process that was lost while the run goes on."""

    process: str
    cause: str
    remedy: str
    """What becomes of it: started again, where and when, or left out."""
    machine: str = ""
    """The machine that it was lost with; empty: the process alone was lost."""


class Observer(Protocol):
    """Follow a run; called by the controller's loop, so it must be quick.

    One that raises an error is not called again; the run goes on without it.
    """

    def run_started(self, run_dir: Path, job: JobSpec) -> None:
        """Note that processes are being started."""

    def declared(self, job: JobSpec) -> None:
        """Note the job with what the user's script has declared: epochs and global batch."""
        return

    def printed(self, text: str) -> None:
        """Show lines that the user's script has printed on the chief."""
        return

    def progressed(self, progress: RunProgress) -> None:
        """Show the progress; called a few times a second."""

    def epoch_done(self, report: EpochFigures) -> None:
        """Note that an epoch is over."""

    def switched(self, switch: Switched) -> None:
        """Note that the run goes on under another strategy."""

    def placed(self, placed: Placed) -> None:
        """Note where the parts of a split network were placed."""

    def process_lost(self, loss: ProcessLoss) -> None:
        """Note that a process was lost, and what becomes of it."""

    def noted(self, message: str) -> None:
        """Note what else happens to a run: a process is back, or why the run is being ended."""

    def run_finished(self, summary: Summary) -> None:
        """Note that the run has finished."""


class ObserverGroup:
    """Notify all observers of a run; a broken one cannot end it.

    Args:
        observers: The observers.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def notify(self, tell: Callable[[Observer], None]) -> list[str]:
        """Call every observer; returns why some were dropped.

        A terminal or pipe that was closed must not end a training of hours.
        """
        faults = []
        for observer in list(self._observers):
            try:
                tell(observer)
            except Exception as error:  # an observer is foreign code: reported, and left out
                self._observers.remove(observer)
                _log.warning("an observer failed", exc_info=True)
                faults.append(
                    f"{type(observer).__name__} does not show the run any more: "
                    f"{type(error).__name__}: {error}"
                )
        return faults


class SpeedMeter:
    """Throughput in samples per second over the last few seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._last: dict[str, int] = {}
        self._total = 0

    def rate(self, now_s: float, samples: Mapping[str, int]) -> float:
        """Note the samples of each worker since it started; returns the throughput.

        A worker that leaves takes nothing away, and its successor, which counts from zero, only
        adds: the throughput is never negative.
        """
        for worker, count in samples.items():
            before = self._last.get(worker, 0)
            self._total += count - before if count >= before else count
        self._last = dict(samples)
        return self._rate(now_s, self._total)

    def _rate(self, now_s: float, samples: int) -> float:
        if samples == 0:
            # The time before the first step would lower the throughput.
            self._points.clear()
        self._points.append((now_s, samples))
        while now_s - self._points[0][0] > _RATE_WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        then_s, before = self._points[0]
        return (samples - before) / (now_s - then_s) if now_s > then_s else 0.0


def combine(
    workers: Sequence[Progress], *, epochs: int, elapsed_s: float, rate: float
) -> RunProgress:
    """Combine the running totals of all workers."""
    lead = max(workers, key=lambda one: (one.epoch, one.step))
    current = [one for one in workers if one.epoch == lead.epoch]
    done = sum(one.epoch_samples for one in current)
    weight = sum(one.epoch_samples if one.weight is None else one.weight for one in current)
    total = lead.epoch_total
    share = min(1.0, done / total) if total else 0.0
    left = (epochs - lead.epoch - share) * total
    eta = left / rate if rate > 0 and total else None
    return RunProgress(
        epoch=lead.epoch,
        epochs=epochs,
        epoch_share=share,
        samples=sum(one.samples for one in workers),
        samples_per_s=rate,
        loss=sum(one.loss_sum for one in current) / weight if weight else None,
        accuracy=sum(one.num_correct for one in current) / weight
        if weight and lead.has_classes
        else None,
        lr=lead.lr,
        activity=lead.activity,
        elapsed_s=elapsed_s,
        eta_s=eta,
        time_shares=_time_shares(workers),
        epoch_samples=done,
        epoch_total=total,
    )


def _time_shares(workers: Sequence[Progress]) -> dict[str, float]:
    # Not compared yet: the last worker to arrive at an exchange only communicates; what the
    # others spend beyond that is waiting.
    shared = min(one.open_exchange_s for one in workers)
    wait_s = sum(one.wait_s + one.open_exchange_s - shared for one in workers)
    seconds = {
        "input": sum(one.input_s for one in workers),
        "compute": sum(one.compute_s + one.apply_s for one in workers),
        "communication": sum(one.exchange_s for one in workers) - wait_s,
        "waiting": wait_s,
    }
    total = sum(seconds.values())
    return {name: spent / total for name, spent in seconds.items()} if total > 0 else {}
