"""Clip tracks of running totals, sampled from a process or machine, to time windows; pure.

Totals are interpolated at a window's edges; workers take samples exactly where their training
begins and ends. The meaning of the totals is left to `usage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec


class TimeWindow(msgspec.Struct, frozen=True):
    """A time interval on the controller's monotonic clock."""

    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One sample: running totals and present levels."""

    time_s: float
    totals: Mapping[str, float]
    levels: Mapping[str, float]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Use between two samples, clipped to the window."""

    begin_s: float
    end_s: float
    used: Mapping[str, float]
    levels: Mapping[str, float]
    """The mean of both samples."""
    highest: Mapping[str, float]
    """The higher of both."""

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s


def clip(points: Sequence[Point], window: TimeWindow) -> Iterator[Stretch]:
    """Yield the parts of a track that lie inside a window.

    A total that decreased or appeared in between was reset: nothing is counted for it.

    Args:
        points: In the order of time, with totals of the same origin.
        window: The window to clip to.
    """
    for before, after in pairwise(points):
        begin_s = max(before.time_s, window.begin_s)
        end_s = min(after.time_s, window.end_s)
        if end_s <= begin_s:
            continue
        shared = [name for name in after.levels if name in before.levels]
        share = (end_s - begin_s) / (after.time_s - before.time_s)
        yield Stretch(
            begin_s=begin_s,
            end_s=end_s,
            used={
                name: share * max(0.0, total - before.totals[name])
                for name, total in after.totals.items()
                if name in before.totals
            },
            levels={name: (before.levels[name] + after.levels[name]) / 2 for name in shared},
            highest={name: max(before.levels[name], after.levels[name]) for name in shared},
        )


def add_up(stretches: Sequence[Stretch]) -> dict[str, float]:
    """Sum the use of all stretches."""
    sums: dict[str, float] = {}
    for stretch in stretches:
        for name, amount in stretch.used.items():
            sums[name] = sums.get(name, 0.0) + amount
    return sums


def mean_levels(stretches: Sequence[Stretch]) -> dict[str, float]:
    """Average the levels over time."""
    sums: dict[str, float] = {}
    lengths: dict[str, float] = {}
    for stretch in stretches:
        for name, level in stretch.levels.items():
            sums[name] = sums.get(name, 0.0) + level * stretch.duration_s
            lengths[name] = lengths.get(name, 0.0) + stretch.duration_s
    return {name: total / lengths[name] for name, total in sums.items()}


def highest_levels(stretches: Sequence[Stretch]) -> dict[str, float]:
    """Return the highest level at any sample."""
    highest: dict[str, float] = {}
    for stretch in stretches:
        for name, level in stretch.highest.items():
            highest[name] = max(level, highest.get(name, level))
    return highest


def subtract(stretch: Stretch, idle: Sequence[Stretch]) -> Stretch:
    """Subtract an idle machine's rates and levels from a stretch; never below zero."""
    if not idle:
        return stretch
    idle_s = sum(one.duration_s for one in idle)
    used, levels = add_up(idle), mean_levels(idle)
    share = stretch.duration_s / idle_s
    return msgspec.structs.replace(
        stretch,
        used={k: max(0.0, v - share * used.get(k, 0.0)) for k, v in stretch.used.items()},
        levels={k: max(0.0, v - levels.get(k, 0.0)) for k, v in stretch.levels.items()},
        highest={k: max(0.0, v - levels.get(k, 0.0)) for k, v in stretch.highest.items()},
    )
