"""Perturb a simulated run: machines that slow down, workers that crash and are replaced.

At given times (`SlowMachine`, `Crash`) or at random (`Straggling`, a two-state Markov modulator per
machine). Plain data, and `SlowdownModel`, which computes the slowdown of a machine at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class SlowMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine computes more slowly for a period."""

    machine: str
    factor: float
    begin_s: float = 0.0
    end_s: float = float("inf")


class Straggling(msgspec.Struct, frozen=True, kw_only=True):
    """A machine turns slow and recovers repeatedly."""

    machine: str
    factor: float
    normal_s: float
    """Mean time between two slow periods."""
    slow_s: float
    """Mean duration of one."""


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is lost."""

    rank: int
    at_s: float
    noticed_s: float = 1.0
    """From the crash until it is detected."""
    back_s: float | None = None
    """From the crash until a successor takes part; None: never."""


Perturbation = SlowMachine | Straggling | Crash


class SlowdownModel:
    """Compute the slowdown of each machine at a time; crashes are left to the simulation."""

    def __init__(self, perturbations: Sequence[Perturbation], seed: int) -> None:
        # Indexed by machine, since every step of hundreds of workers asks.
        self._slowdowns: dict[str, list[SlowMachine]] = {}
        self._spells: dict[str, list[_Spells]] = {}
        for number, one in enumerate(perturbations):
            if isinstance(one, SlowMachine):
                self._slowdowns.setdefault(one.machine, []).append(one)
            elif isinstance(one, Straggling):
                spells = _Spells(one, np.random.default_rng((seed, 7, number)))
                self._spells.setdefault(one.machine, []).append(spells)

    def factor(self, machine: str, time_s: float) -> float:
        """Return the slowdown factor of a computation that begins now."""
        factor = 1.0
        for slowdown in self._slowdowns.get(machine, ()):
            if slowdown.begin_s <= time_s < slowdown.end_s:
                factor *= slowdown.factor
        for spells in self._spells.get(machine, ()):
            if spells.is_slow(time_s):
                factor *= spells.of.factor
        return factor


class _Spells:
    """Slow periods of one machine; queried with increasing times."""

    def __init__(self, of: Straggling, rng: np.random.Generator) -> None:
        self.of = of
        self._rng = rng
        self._slow = False
        self._until_s = rng.exponential(of.normal_s)

    def is_slow(self, time_s: float) -> bool:
        while time_s >= self._until_s:
            self._slow = not self._slow
            mean_s = self.of.slow_s if self._slow else self.of.normal_s
            self._until_s += self._rng.exponential(mean_s)
        return self._slow
