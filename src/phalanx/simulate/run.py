"""Hold the totals of a simulated run, and draw compute times for all simulations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from phalanx.plan.workers import WorkerModels
from phalanx.simulate.perturbation import Perturbation, SlowdownModel

_LEAST_JITTER = 1e-4
# Gamma variates are drawn in blocks: single draws would dominate the simulation's time.
_BLOCK = 256


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a simulated run."""

    elapsed_s: float
    samples: int
    """Samples that went into updates."""
    updates: int
    pushes: int = 0
    dropped: int = 0
    lost: int = 0
    staleness: dict[int, int] = {}
    """Count of applied gradients by staleness."""
    busy: tuple[float, ...] = ()
    """Share of the time in which each worker computed."""
    server_busy: tuple[float, ...] = ()
    sent_bytes: float = 0.0
    num_events: int = 0

    @property
    def samples_per_s(self) -> float:
        """Return the samples in updates per second."""
        return self.samples / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def staleness_mean(self) -> float:
        """Return the mean over applied gradients."""
        count = sum(self.staleness.values())
        total = sum(value * times for value, times in self.staleness.items())
        return total / count if count else 0.0

    @property
    def waiting_share(self) -> float:
        """Return the share of the workers' time in exchanges and waiting."""
        return 1 - sum(self.busy) / len(self.busy) if self.busy else 0.0


class ComputeTimes:
    """Draw the duration of each worker's next computation."""

    def __init__(
        self, group: WorkerModels, perturbations: Sequence[Perturbation], seed: int
    ) -> None:
        self._models = group.workers
        self._slowdowns = SlowdownModel(perturbations, seed)
        self._rngs = [np.random.default_rng((seed, 1, rank)) for rank in range(len(group.workers))]
        self._stock: list[list[float]] = [[] for _ in group.workers]

    def next_s(self, rank: int, now_s: float) -> float:
        """Return the duration of a computation that begins now."""
        model = self._models[rank]
        stock = self._stock[rank]
        if not stock:
            jitter = model.fit.jitter
            if jitter <= _LEAST_JITTER:
                stock.extend([1.0] * _BLOCK)
            else:
                shape = 1 / jitter**2
                stock.extend(self._rngs[rank].gamma(shape, 1 / shape, _BLOCK).tolist())
        return model.compute_s * stock.pop() * self._slowdowns.factor(model.machine, now_s)
