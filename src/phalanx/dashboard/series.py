"""Keep series of a run of any length in bounded memory.

`StepSeries` sums steps into stretches of time whose width doubles when there are too many: sums
stay exact, only the resolution falls. `Thinning` chooses every n-th sample of running totals, which
loses nothing but resolution either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_STRETCHES = 240
MAX_SAMPLES = 400
MAX_LATEST = 130


@dataclass(slots=True)
class PhaseSums:
    """Sums over steps of one worker."""

    samples: float = 0.0
    loss_sum: float = 0.0
    correct: float = 0.0
    steps: float = 0.0
    input_s: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    wait_s: float = 0.0

    def add(self, other: PhaseSums, share: float = 1.0) -> None:
        """Add a share of other sums."""
        # Written out: this is called for every step of every worker.
        self.samples += share * other.samples
        self.loss_sum += share * other.loss_sum
        self.correct += share * other.correct
        self.steps += share * other.steps
        self.input_s += share * other.input_s
        self.compute_s += share * other.compute_s
        self.communication_s += share * other.communication_s
        self.wait_s += share * other.wait_s

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, as in the summary of a run."""
        return {
            "input": self.input_s,
            "compute": self.compute_s,
            "communication": self.communication_s,
            "waiting": self.wait_s,
        }


def add_sums(parts: Sequence[PhaseSums]) -> PhaseSums:
    """Return the sum of several."""
    total = PhaseSums()
    for part in parts:
        total.add(part)
    return total


@dataclass
class StepSeries:
    """Steps of all workers over time, in seconds since the run began."""

    width_s: float = 0.25
    totals: dict[str, PhaseSums] = field(default_factory=dict)
    """Of each worker over the whole run."""
    stretches: dict[int, PhaseSums] = field(default_factory=dict)
    """Of all workers, by number of the stretch."""
    latest: dict[int, dict[str, PhaseSums]] = field(default_factory=dict)
    """Of each worker, for the last `MAX_LATEST` stretches or so."""
    rates: dict[int, float] = field(default_factory=dict)
    """The last learning rate of each stretch."""

    def add(self, worker: str, begin_s: float, end_s: float, sums: PhaseSums) -> None:
        """Add steps of a worker, spread over the time that they took."""
        self.totals.setdefault(worker, PhaseSums()).add(sums)
        begin_s, end_s = max(0.0, begin_s), max(0.0, end_s)
        while (end_s - begin_s) / self.width_s > MAX_STRETCHES / 4:
            self._widen()
        first, last = int(begin_s // self.width_s), int(end_s // self.width_s)
        if first >= last:
            self._put(last, worker, sums, 1.0)
        else:
            for number in range(first, last + 1):
                inside_s = min(end_s, (number + 1) * self.width_s) - max(
                    begin_s, number * self.width_s
                )
                self._put(number, worker, sums, inside_s / (end_s - begin_s))
        while len(self.stretches) > MAX_STRETCHES:
            self._widen()

    def note_rate(self, time_s: float, rate: float) -> None:
        """Note the learning rate at a moment."""
        self.rates[int(max(0.0, time_s) // self.width_s)] = rate

    def recent(self, seconds: float) -> tuple[dict[str, PhaseSums], float]:
        """Return the sums of each worker over the last stretches, and their length in seconds.

        The last stretch is left out, if there are others, because it is not over.
        """
        numbers = sorted(self.latest)
        if len(numbers) > 1:
            numbers = numbers[:-1]
        first = numbers[-1] - max(1, int(seconds // self.width_s)) + 1 if numbers else 0
        chosen = [number for number in numbers if number >= first]
        found: dict[str, PhaseSums] = {}
        for number in chosen:
            for worker, sums in self.latest[number].items():
                found.setdefault(worker, PhaseSums()).add(sums)
        return found, self.width_s * (chosen[-1] - chosen[0] + 1) if chosen else 0.0

    def over_time(self) -> Iterator[tuple[float, PhaseSums]]:
        """Yield the middle of each stretch, and its sums over all workers, oldest first."""
        for number in sorted(self.stretches):
            yield (number + 0.5) * self.width_s, self.stretches[number]

    def _put(self, number: int, worker: str, sums: PhaseSums, share: float) -> None:
        if number not in self.stretches:
            self.stretches[number] = PhaseSums()
        self.stretches[number].add(sums, share)
        if number not in self.latest:
            self.latest[number] = {}
            if len(self.latest) > 2 * MAX_LATEST:
                for old in sorted(self.latest)[:MAX_LATEST]:
                    del self.latest[old]
        self.latest.setdefault(number, {}).setdefault(worker, PhaseSums()).add(sums, share)

    def _widen(self) -> None:
        self.width_s *= 2
        narrow, self.stretches = self.stretches, {}
        for number, sums in narrow.items():
            self.stretches.setdefault(number // 2, PhaseSums()).add(sums)
        before, self.latest = self.latest, {}
        for number, workers in before.items():
            for worker, sums in workers.items():
                wide = self.latest.setdefault(number // 2, {})
                wide.setdefault(worker, PhaseSums()).add(sums)
        self.rates = {number // 2: rate for number, rate in sorted(self.rates.items())}


@dataclass
class Thinning:
    """Chooses every n-th sample of a log, so that at most `MAX_SAMPLES` or so are decoded."""

    every: int = 1
    seen: int = 0
    kept: int = 0

    def choose(self) -> bool:
        """Count one more sample, and tell whether to keep it."""
        self.seen += 1
        if (self.seen - 1) % self.every:
            return False
        self.kept += 1
        if self.kept > MAX_SAMPLES:
            self.every *= 2
            self.kept //= 2
        return True


def halve(points: list[Any]) -> None:
    """Drop every second point, from the second on, if there are too many."""
    if len(points) > MAX_SAMPLES:
        del points[1::2]
