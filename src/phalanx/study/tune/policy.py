"""Search the share of a job that has to be synchronous; pure: runs in, decision out.

Two searches, both functions of all runs so far, so that an interrupted search is resumed by calling
them again. `binary` is the published one (Sync-Switch, ICDCS 2021): halve an interval, R runs at
every point. `halving` is cheaper: all points at once with one seed, and a run that is behind at its
bar is ended there; survivors are confirmed with more seeds if requested.

The target is the mean accuracy of the synchronous job less a tolerance. A share of 1 stands for
the synchronous job. `search` runs the jobs, `switch_jobs` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from phalanx.spec.job import JobSpec

Method = Literal["binary", "halving"]
Outcome = Literal["meets", "misses", "dropped", "failed", "open"]

SYNCHRONOUS = 1.0
"""The share of the job that never switches."""
# Sums of decimals are not exact in binary; accuracies are multiples of one sample.
_ROUNDING = 1e-9
# A schedule without decays: evaluate when the rate is as low as a decay makes it, or half-way.
_LOW_RATE = 0.2
_HALF_WAY = 0.5


@dataclass(frozen=True)
class TuneGoal:
    """Method and limits of a search."""

    method: Method = "binary"
    runs: int = 5
    """Runs of every setting, each with another seed."""
    tolerance: float = 0.01
    """Loss of accuracy, as a share of 1, that counts as none."""
    max_settings: int = 5
    """Shares that are tried."""


@dataclass(frozen=True)
class FinishedTrial:
    """The result of one run."""

    share: float
    repeat: int
    accuracy: float | None
    """None: it failed."""
    dropped: bool = False
    """It was ended at its bar."""


@dataclass(frozen=True)
class WantedTrial:
    """A setting, and the number of runs that it needs."""

    share: float
    runs: int
    barred: bool = False
    """A run that is behind at its bar is ended there."""


@dataclass(frozen=True)
class ShareOutcome:
    """The assessment of one setting."""

    share: float
    outcome: Outcome
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """Over the runs that count; None before there is one."""
        return fmean(self.accuracies) if self.accuracies else None


@dataclass(frozen=True)
class TuneDecision:
    """The state of a search, and its next runs."""

    wanted: tuple[WantedTrial, ...]
    """Settings that must have been run before the next decision; none: the search is over."""
    outcomes: tuple[ShareOutcome, ...]
    """The synchronous job, then every share in the order in which it was tried."""
    target: float | None
    """Accuracy that a setting must reach; None until the synchronous job has run."""
    found: float | None
    """The smallest share that meets the target so far."""

    @property
    def is_over(self) -> bool:
        """Whether no more runs are needed."""
        return not self.wanted


def decide(aim: TuneGoal, ran: Sequence[FinishedTrial]) -> TuneDecision:
    """Decide the next runs from these runs, in any order."""
    runs: dict[float, list[FinishedTrial]] = {}
    for one in sorted(ran, key=lambda one: one.repeat):
        runs.setdefault(one.share, []).append(one)
    search = _binary if aim.method == "binary" else _halving
    return search(aim, runs)


def first_shares(max_settings: int) -> tuple[float, ...]:
    """Return 1/2, 1/4, 1/8, ...: the shares of `halving`, and of `binary` if all of them meet."""
    return tuple(0.5**number for number in range(1, max_settings + 1))


def bar_epoch(job: JobSpec, share: float) -> int | None:
    """Return the epoch after which a run that switches at `share` meets its bar; None: never.

    That is the first evaluation after one complete epoch in which the rate had decayed and the job
    had switched. Before the switch it equals the synchronous run, and before the decay
    asynchronous runs lag in any case.
    """
    moment = max(decay_share(job), share) * job.epochs
    epoch = math.ceil(moment - _ROUNDING) + 1
    return epoch if epoch < job.epochs else None


def decay_share(job: JobSpec) -> float:
    """Return the share of the job at which its rate first decays."""
    drops = job.schedule.drops(job.epochs)
    if drops:
        return min(1.0, drops[0])
    low = job.schedule.share_at_factor(_LOW_RATE)
    return _HALF_WAY if low is None else low


def bar_value(curve: Mapping[int, float], epoch: int, *, tolerance: float) -> float | None:
    """Return the accuracy required after an epoch: the synchronous one less two tolerances.

    `curve` is that of the synchronous run of the same seed, by epochs done. Accuracies are noisier
    half-way, and a loss may still be recovered, so twice the tolerance is accepted there.
    """
    reached = curve.get(epoch)
    return None if reached is None else reached - 2 * tolerance


def _binary(aim: TuneGoal, runs: Mapping[float, Sequence[FinishedTrial]]) -> TuneDecision:
    synchronous = _assess(SYNCHRONOUS, runs, num_runs=aim.runs, target=None)
    if synchronous.outcome != "meets":
        return _begin(synchronous, aim.runs)
    target = _target(synchronous, aim)
    outcomes = [synchronous]
    low, high, found = 0.0, 1.0, None
    for _ in range(aim.max_settings):
        share = (low + high) / 2
        tried = _assess(share, runs, num_runs=aim.runs, target=target)
        outcomes.append(tried)
        if tried.outcome == "open":
            return TuneDecision((WantedTrial(share, aim.runs),), tuple(outcomes), target, found)
        if tried.outcome == "meets":
            high = found = share
        else:
            low = share
    return TuneDecision((), tuple(outcomes), target, found)


def _halving(aim: TuneGoal, runs: Mapping[float, Sequence[FinishedTrial]]) -> TuneDecision:
    first = {share: [one for one in some if one.repeat == 0] for share, some in runs.items()}
    synchronous = _assess(SYNCHRONOUS, first, num_runs=1, target=None)
    if synchronous.outcome != "meets":
        return _begin(synchronous, 1)
    shares = first_shares(aim.max_settings)
    target = _target(synchronous, aim)
    outcomes = {share: _assess(share, first, num_runs=1, target=target) for share in shares}
    missing = [share for share in shares if outcomes[share].outcome == "open"]
    survivors = [share for share in shares if outcomes[share].outcome == "meets"]
    found = min(survivors, default=None)
    if missing:
        wanted = tuple(WantedTrial(share, 1, barred=True) for share in missing)
        return TuneDecision(wanted, (synchronous, *outcomes.values()), target, found)
    if aim.runs > 1 and survivors:
        return _confirm(aim, runs, outcomes, survivors)
    return TuneDecision((), (synchronous, *outcomes.values()), target, found)


def _confirm(
    aim: TuneGoal,
    runs: Mapping[float, Sequence[FinishedTrial]],
    outcomes: dict[float, ShareOutcome],
    survivors: Sequence[float],
) -> TuneDecision:
    """Run the smallest survivor with the other seeds; if it misses, the next one."""
    synchronous = _assess(SYNCHRONOUS, runs, num_runs=aim.runs, target=None)
    if synchronous.outcome == "failed":
        return TuneDecision((), (synchronous, *outcomes.values()), None, None)
    target = _target(synchronous, aim)
    also = () if synchronous.outcome == "meets" else (WantedTrial(SYNCHRONOUS, aim.runs),)
    for share in sorted(survivors):
        tried = _assess(share, runs, num_runs=aim.runs, target=target)
        outcomes[share] = tried
        shown = (synchronous, *outcomes.values())
        if also or tried.outcome == "open":
            return TuneDecision((*also, WantedTrial(share, aim.runs)), shown, target, share)
        if tried.outcome == "meets":
            return TuneDecision((), shown, target, share)
    return TuneDecision((), (synchronous, *outcomes.values()), target, None)


def _begin(synchronous: ShareOutcome, num_runs: int) -> TuneDecision:
    """Request the synchronous runs, or end the search if they fail: there is no target yet."""
    failed = synchronous.outcome == "failed"
    wanted = () if failed else (WantedTrial(SYNCHRONOUS, num_runs),)
    return TuneDecision(wanted, (synchronous,), None, None)


def _target(synchronous: ShareOutcome, aim: TuneGoal) -> float:
    assert synchronous.mean is not None
    return synchronous.mean - aim.tolerance


def _assess(
    share: float,
    runs: Mapping[float, Sequence[FinishedTrial]],
    *,
    num_runs: int,
    target: float | None,
) -> ShareOutcome:
    """Assess the runs of one setting; without a target it is enough to have run."""
    mine = runs.get(share, ())
    accuracies = tuple(one.accuracy for one in mine if one.accuracy is not None)
    outcome: Outcome
    if len(accuracies) < len(mine):
        # A failed setting counts as a miss, whatever the cause: it has not proved reliable.
        outcome = "failed"
    elif any(one.dropped for one in mine):
        outcome = "dropped"
    elif len(mine) < num_runs:
        outcome = "open"
    else:
        enough = target is None or fmean(accuracies) >= target - _ROUNDING
        outcome = "meets" if enough else "misses"
    return ShareOutcome(share, outcome, accuracies)
