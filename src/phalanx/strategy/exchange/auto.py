"""Measure in the first steps which compression is fastest here, and keep it.

Every candidate whose effect the user accepts exchanges a few steps. The median time of its steps,
on the slowest worker, decides; a candidate with more effect must gain a few per cent. All workers
decide by the same figures. What a candidate has left out of gradients is added to the next one's
first gradient, so nothing is lost on the way. Times differ from run to run, so the choice may, too;
a checkpoint holds it, and a resumed run keeps it.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective
from phalanx.engine.trained import FlatReplica
from phalanx.spec.compression import AutoCompressionSpec
from phalanx.strategy.exchange.base import RESIDUAL, GradientExchange, build_exchange

_CHOICE = "choice"
# A new candidate's first step draws memory, and ends the exchange of the one before.
_SKIPPED = 1
# What more effect on the result has to gain at least.
_LEAST_GAIN = 1.03


class AutoExchange(GradientExchange):
    """Try each candidate, then keep the fastest.

    Args:
        spec: The accepted effect, and how many steps are measured.
        replica: Its gradient buffer is summed in place.
        collective: The workers.
    """

    def __init__(
        self, spec: AutoCompressionSpec, replica: FlatReplica, collective: Collective
    ) -> None:
        super().__init__(replica, collective)
        self._steps = spec.steps
        self._candidates = spec.candidates()
        self._owed: Tensor | None = None
        self._medians: list[float] = []
        self._times: list[float] = []
        self._began_s: float | None = None
        self._note: str | None = None
        self._chosen: int | None = None
        self._now = self._take(0)
        if len(self._candidates) == 1:
            self._chosen = 0

    def _take(self, number: int) -> GradientExchange:
        """Go on with a candidate; what the one before has left out is owed."""
        self._now = build_exchange(self._candidates[number], self._replica, self._collective)
        self.pending = self._now.pending
        self.replicas_drift |= self._now.replicas_drift
        return self._now

    @property
    @override
    def kept(self) -> dict[str, Tensor]:
        left = self._now.kept.get(RESIDUAL)
        total = torch.zeros_like(self._replica.gradients) if left is None else left.clone()
        return {RESIDUAL: total if self._owed is None else total.add_(self._owed)}

    @override
    def sums_bytes(self) -> list[int]:
        return self._now.sums_bytes()

    @override
    def begin(self, step_index: int) -> None:
        if self._chosen is None:
            self._look()
        self._now.begin(step_index)

    def _look(self) -> None:
        """Note the time of the step before; go on to the next candidate when it is known."""
        now_s = time.perf_counter()
        if self._began_s is not None:
            self._times.append(now_s - self._began_s)
        self._began_s = now_s
        if len(self._times) < _SKIPPED + self._steps:
            return
        self._medians.append(statistics.median(self._times[_SKIPPED:]))
        self._times, self._owed = [], self.kept[RESIDUAL]
        if len(self._medians) < len(self._candidates):
            self._take(len(self._medians))
            return
        slowest = torch.tensor(self._medians, dtype=torch.float64)
        self._collective.all_reduce(slowest, "max")
        self._chosen = _fastest(slowest.tolist())
        self._take(self._chosen)
        self._note = self._explain(slowest.tolist())

    def _explain(self, slowest_s: list[float]) -> str:
        assert self._chosen is not None
        labels = [one.label() for one in self._candidates]
        figures = ", ".join(
            f"{label} {1e3 * seconds:.0f} ms"
            for label, seconds in zip(labels, slowest_s, strict=True)
        )
        return f"compression auto: {labels[self._chosen]} is kept; a step took {figures}"

    @override
    def take_note(self) -> str | None:
        note, self._note = self._note, None
        return note

    @override
    def start(self, index: int) -> None:
        if self._owed is not None:
            bucket = self._replica.buckets[index]
            owed = self._owed[bucket.start : bucket.stop]
            self._replica.gradients[bucket.start : bucket.stop].add_(owed)
        self._now.start(index)

    @override
    def finish(self) -> None:
        self._now.finish()
        self._owed = None

    @override
    def export_state(self) -> dict[str, Tensor]:
        chosen = -1 if self._chosen is None else self._chosen
        own = self._now.export_state() if self._chosen is not None else {}
        return own | super().export_state() | {_CHOICE: torch.tensor([chosen])}

    @override
    def import_state(self, state: dict[str, Tensor]) -> None:
        chosen = int(state[_CHOICE].item()) if _CHOICE in state else -1
        if 0 <= chosen < len(self._candidates):
            self._chosen = chosen
            self._take(chosen)
            self._now.import_state(state)
        if RESIDUAL in self._now.kept and self._chosen is not None:
            return
        if RESIDUAL in state and state[RESIDUAL].shape[1:] == self._replica.gradients.shape:
            # What is kept now cannot hold it: it goes with the next gradient.
            self._owed = torch.zeros_like(self._replica.gradients)
            self._carry(state[RESIDUAL], self._owed)


def _fastest(times_s: list[float]) -> int:
    """Return the fastest candidate; they are in the order of their effect."""
    best = 0
    for number, seconds in enumerate(times_s):
        if seconds * _LEAST_GAIN < times_s[best]:
            best = number
    return best
