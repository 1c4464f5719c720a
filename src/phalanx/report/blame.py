"""Attribute waiting time to the worker, and the phase of its step, that caused it.

    blame_run(run: RunDir) -> Blame                      reads the logs of a run
    blame_rounds(rounds: Iterable[Round]) -> Blame       pure; `rounds.make_rounds` makes them

Notation, for one round: `a[r][p]` is what worker r spent on phase p since the exchange before,
`a[r]` the sum over phases, `w[r]` how long it waited in the exchange. The last, L, has the largest
a. It is charged

    cost = Σ over r ≠ L of min(w[r], a[L] - a[r])

that is, of the waiting that was measured, as much as its lateness explains. So blame never exceeds
waiting; what stays unblamed is noise of network and scheduler. The cost is split over phases in
proportion to max(0, a[L][p] - mean over r ≠ L of a[r][p]): since a[L] is above that mean, some
phase is.

Under parameter servers a round is an epoch and `a` a mean per step, so a worker's lateness counts
once for each step of the one that waited; `w` is how long the servers' rule held it back.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.records.events import Clock, Stall, Started, Step
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.report.rounds import PHASES, Round, Seconds, make_rounds

_WORKER = "worker-"


class RankBlame(msgspec.Struct, kw_only=True, frozen=True):
    """Waiting that one worker caused, and waiting of that worker."""

    rank: int
    cost_s: float
    """Seconds that all others together waited because of it."""
    phases: dict[str, float]
    """The same by the phase in which it was behind; phases without cost are left out."""
    rounds_last: int
    """Rounds in which it arrived last and others waited."""
    waited_s: float
    """Seconds that it waited for any other worker."""


class Blame(msgspec.Struct, kw_only=True, frozen=True):
    """Waiting of a run by the worker that caused it."""

    rounds: int
    waiting_s: float
    """Of all workers together."""
    blamed_s: float
    """The part of it that the lateness of a worker explains."""
    ranks: list[RankBlame]
    """Highest cost first."""


class Charge(msgspec.Struct, frozen=True):
    """The worker charged for one round, and its cost."""

    rank: int
    cost_s: float
    phases_s: Seconds


def blame_run(run: RunDir) -> Blame:
    """Attribute the waiting of a run; streams its logs, so memory does not grow with them."""
    paths = {
        int(path.stem.removeprefix(_WORKER)): path
        for path in (run.path / "events").glob(f"{_WORKER}*.jsonl")
    }
    kinds = (Started, Clock, Step, Stall)
    logs = {rank: read_events(paths[rank], *kinds) for rank in sorted(paths)}
    return blame_rounds(make_rounds(logs), ranks=logs)


def blame_rounds(rounds: Iterable[Round], *, ranks: Iterable[int] = ()) -> Blame:
    """Attribute the waiting of some rounds.

    Args:
        rounds: In any order.
        ranks: Workers to list even if they took part in none.
    """
    sums = {rank: _Sum() for rank in ranks}
    num_rounds = 0
    for one in rounds:
        num_rounds += 1
        for rank, waited_s in zip(one.ranks, one.waited_s, strict=True):
            sums.setdefault(rank, _Sum()).waited_s += waited_s
        sums[(found := charge(one)).rank].add(found)
    named = [total.named(rank) for rank, total in sums.items()]
    return Blame(
        rounds=num_rounds,
        waiting_s=sum(one.waited_s for one in named),
        blamed_s=sum(one.cost_s for one in named),
        ranks=sorted(named, key=lambda one: (-one.cost_s, one.rank)),
    )


def charge(one: Round) -> Charge:
    """Charge the last worker to arrive in a round of at least two."""
    totals = [sum(own) for own in one.own_s]
    last = totals.index(max(totals))
    others = [place for place in range(len(totals)) if place != last]
    cost_s = sum(
        min(one.waited_s[place], one.weights[place] * (totals[last] - totals[place]))
        for place in others
    )
    behind = [
        max(0.0, mine - sum(one.own_s[place][phase] for place in others) / len(others))
        for phase, mine in enumerate(one.own_s[last])
    ]
    whole = sum(behind)
    if cost_s <= 0 or whole <= 0:
        return Charge(one.ranks[last], 0.0, (0.0,) * len(PHASES))
    return Charge(one.ranks[last], cost_s, tuple(cost_s * part / whole for part in behind))


class _Sum:
    """Sums of one worker over all rounds."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._cost_s = 0.0
        self._rounds_last = 0
        self._phases = [0.0] * len(PHASES)

    def add(self, found: Charge) -> None:
        if found.cost_s > 0:
            self._cost_s += found.cost_s
            self._rounds_last += 1
            self._phases = [a + b for a, b in zip(self._phases, found.phases_s, strict=True)]

    def named(self, rank: int) -> RankBlame:
        return RankBlame(
            rank=rank,
            cost_s=self._cost_s,
            phases={
                name: seconds
                for name, seconds in zip(PHASES, self._phases, strict=True)
                if seconds > 0
            },
            rounds_last=self._rounds_last,
            waited_s=self.waited_s,
        )
