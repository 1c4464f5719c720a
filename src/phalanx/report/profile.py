"""Summarise operator times of a run by group, per epoch, and compare two runs; pure.

Every figure is seconds per epoch of one worker: the mean over the profiled epochs of each worker,
then over workers. Groups and `idle` add up to wall time. A comparison has one direction only,
B ÷ A, which is part of the name of every field that holds a ratio: published tables of this kind
have inverted some of theirs without notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from phalanx.errors import SpecError
from phalanx.records.manifest import read_manifest
from phalanx.records.profile import EpochProfile, ProcessProfile, read_profiles
from phalanx.records.rundir import RunDir
from phalanx.report.grouping import IDLE, Grouping, sum_groups


class GroupTime(msgspec.Struct, kw_only=True, frozen=True):
    """One group: seconds per epoch and worker."""

    group: str
    mean_s: float
    share: float
    """Of the wall time, 0 to 1."""
    lowest_s: float
    """Of the worker that spent least on it."""
    highest_s: float
    """Of the worker that spent most on it."""


class OperatorRow(msgspec.Struct, kw_only=True, frozen=True):
    """One operator in one span: per epoch and worker."""

    group: str
    span: str
    name: str
    mean_s: float
    calls: float
    memory_bytes: float = 0.0


class RunProfile(msgspec.Struct, kw_only=True, frozen=True):
    """Operator times of the profiled epochs of a run."""

    run: str
    strategy: str
    engine: str
    workers: int
    epochs: list[int]
    """Counted from 0."""
    wall_s: float
    groups: list[GroupTime]
    """Longest first, `idle` last."""
    operators: list[OperatorRow]
    """Longest first."""
    beside: list[OperatorRow]
    """Work beside the training thread; no part of `wall_s`."""


class RatioRow(msgspec.Struct, kw_only=True, frozen=True):
    """One group in two runs."""

    group: str
    a_s: float
    b_s: float
    b_over_a: float | None
    """None where A spent nothing on it."""

    @property
    def verdict(self) -> str:
        """The ratio in words, so that its direction is plain."""
        if self.b_over_a is None:
            return "only B" if self.b_s > 0 else "neither"
        if self.b_s == 0:
            return "only A"
        if abs(self.b_over_a - 1) < 0.005:
            return "the same"
        if self.b_over_a > 1:
            return f"B takes {self.b_over_a:.2f} times as long"
        return f"A takes {1 / self.b_over_a:.2f} times as long"


class ProfileComparison(msgspec.Struct, kw_only=True, frozen=True):
    """Two runs by group; every ratio is B ÷ A."""

    a: str
    b: str
    direction: str
    rows: list[RatioRow]
    """By the longer of both, `idle` after the operators, `total` last."""


DIRECTION = "B ÷ A: above 1, B takes longer"
TOTAL = "total"


def profile_run(run: RunDir, grouping: Grouping) -> RunProfile:
    """Summarise the profiled epochs of a run. SpecError: the run has no profile."""
    profiles = [one for one in read_profiles(run) if one.epochs]
    if not profiles:
        raise SpecError(
            f"run {run.name} has no profile; make one with `phalanx profile job.yaml --epochs 2-4`"
        )
    job = read_manifest(run).job
    return summarise_profiles(profiles, grouping, run=run.name, strategy=job["strategy"]["name"])


def summarise_profiles(
    profiles: Sequence[ProcessProfile], grouping: Grouping, *, run: str, strategy: str
) -> RunProfile:
    """Average over the epochs of each worker, then over workers."""
    workers = [[_epoch_groups(epoch, grouping) for epoch in one.epochs] for one in profiles]
    names = dict.fromkeys(name for epochs in workers for epoch in epochs for name in epoch)
    wall_s = fmean(fmean(epoch.wall_s for epoch in one.epochs) for one in profiles)
    groups = [_group_time(name, workers, wall_s) for name in names]
    groups.sort(key=lambda one: (one.group == IDLE, -one.mean_s, one.group))
    return RunProfile(
        run=run,
        strategy=strategy,
        engine=profiles[0].engine,
        workers=len(profiles),
        epochs=sorted({epoch.epoch for one in profiles for epoch in one.epochs}),
        wall_s=wall_s,
        groups=groups,
        operators=_operator_rows(profiles, grouping, beside=False),
        beside=_operator_rows(profiles, grouping, beside=True),
    )


def compare_profiles(a: RunProfile, b: RunProfile) -> ProfileComparison:
    """Compare two runs; A is the reference of B."""
    of_a = {one.group: one.mean_s for one in a.groups}
    of_b = {one.group: one.mean_s for one in b.groups}
    pairs = {name: (of_a.get(name, 0.0), of_b.get(name, 0.0)) for name in of_a | of_b}
    ordered = sorted(pairs, key=lambda name: (name == IDLE, -max(pairs[name]), name))
    pairs[TOTAL] = (a.wall_s, b.wall_s)
    rows = [
        RatioRow(group=name, a_s=a_s, b_s=b_s, b_over_a=b_s / a_s if a_s > 0 else None)
        for name in (*ordered, TOTAL)
        for a_s, b_s in [pairs[name]]
    ]
    return ProfileComparison(a=a.run, b=b.run, direction=DIRECTION, rows=rows)


def _epoch_groups(epoch: EpochProfile, grouping: Grouping) -> dict[str, float]:
    sums = sum_groups(epoch.operators, grouping)
    # The profiler's clock and ours differ by nanoseconds, so a difference can be below zero.
    return sums | {IDLE: max(0.0, epoch.wall_s - sum(sums.values()))}


def _group_time(name: str, workers: Sequence[list[dict[str, float]]], wall_s: float) -> GroupTime:
    means = [fmean(epoch.get(name, 0.0) for epoch in epochs) for epochs in workers]
    mean_s = fmean(means)
    return GroupTime(
        group=name,
        mean_s=mean_s,
        share=mean_s / wall_s if wall_s > 0 else 0.0,
        lowest_s=min(means),
        highest_s=max(means),
    )


def _operator_rows(
    profiles: Sequence[ProcessProfile], grouping: Grouping, *, beside: bool
) -> list[OperatorRow]:
    sums: dict[tuple[str, str], list[float]] = {}
    for one in profiles:
        # Every worker counts alike, however many of its epochs were profiled.
        weight = 1 / (len(one.epochs) * len(profiles))
        for epoch in one.epochs:
            for operator in epoch.beside if beside else epoch.operators:
                total = sums.setdefault((operator.span, operator.name), [0.0, 0.0, 0.0])
                total[0] += weight * operator.self_s
                total[1] += weight * operator.calls
                total[2] += weight * operator.memory_bytes
    rows = [
        OperatorRow(
            group=grouping(span, name),
            span=span,
            name=name,
            mean_s=seconds,
            calls=calls,
            memory_bytes=memory,
        )
        for (span, name), (seconds, calls, memory) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.mean_s, row.span, row.name))
