"""Combine the heartbeats of all workers into the progress of the run, for its observers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from phalanx.records.events import Placed, Switched
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochReport, Progress

_RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class RunProgress:
    """The state of a run at one moment, over all workers."""

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


class Observer(Protocol):
    """Follows a run; called by the controller's loop, so it must be quick."""

    def run_started(self, run_dir: Path, job: JobSpec) -> None:
        """Processes are being started."""

    def progressed(self, progress: RunProgress) -> None:
        """A few times a second."""

    def epoch_done(self, report: EpochReport) -> None:
        """An epoch is over."""

    def switched(self, switch: Switched) -> None:
        """The run goes on under another strategy."""

    def placed(self, placed: Placed) -> None:
        """The parts of a split network have been put on workers."""

    def run_finished(self, summary: Summary) -> None:
        """The run came to its end."""


class SpeedMeter:
    """Samples per second over the last few seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def rate(self, now_s: float, samples: int) -> float:
        """Note how many samples there are by now; returns the speed."""
        if samples == 0:
            # The time before the first step would make the speed look lower than it is.
            self._points.clear()
        self._points.append((now_s, samples))
        while now_s - self._points[0][0] > _RATE_WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        then_s, before = self._points[0]
        return (samples - before) / (now_s - then_s) if now_s > then_s else 0.0


def combine(
    workers: Sequence[Progress], *, epochs: int, elapsed_s: float, rate: float
) -> RunProgress:
    """Put the running totals of all workers together."""
    lead = max(workers, key=lambda one: (one.epoch, one.step))
    current = [one for one in workers if one.epoch == lead.epoch]
    done = sum(one.epoch_samples for one in current)
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
        loss=sum(one.loss_sum for one in current) / done if done else None,
        accuracy=sum(one.num_correct for one in current) / done if done else None,
        lr=lead.lr,
        activity=lead.activity,
        elapsed_s=elapsed_s,
        eta_s=eta,
        time_shares=_time_shares(workers),
        epoch_samples=done,
        epoch_total=total,
    )


def _time_shares(workers: Sequence[Progress]) -> dict[str, float]:
    # Not compared yet: the worker that arrives last at an exchange only communicates, and what the
    # others spend beyond that is waiting for it.
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
