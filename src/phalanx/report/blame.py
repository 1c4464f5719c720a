"""Attribute waiting time to the worker, and the phase of its step, that caused it.

    blame_run(run: RunDir) -> Blame                      reads the logs of a run
    blame_rounds(rounds: Iterable[Round]) -> Blame       pure; `make_rounds` makes them

A round ends with an exchange that all workers of a group take part in: every step under all-reduce,
every few under local SGD, and the end of an epoch. Parameter servers have no such exchange; there
an epoch is one round, made of means per step. Streams, so memory does not grow with the number of
steps.

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

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

import msgspec

from phalanx.records.events import AnyEvent, Clock, Stall, Started, Step
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir

PHASES = ("input", "forward", "backward", "apply", "other")
"""Phases of a worker's time; `other` is the time between two of its steps."""
_INPUT, _FORWARD, _BACKWARD, _APPLY, _OTHER = range(len(PHASES))
# The exchange at the end of an epoch comes after those of all its steps.
_AFTER_STEPS = 1 << 62

Seconds = tuple[float, ...]
"""One figure for each of `PHASES`."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the workers up to one exchange; all lists in the order of `ranks`."""

    ranks: list[int]
    own_s: list[Seconds]
    waited_s: list[float]
    weights: list[float]
    """Weight of `own_s`: one, or with servers the number of steps that it is the mean of."""


class RoundArrival(msgspec.Struct, frozen=True):
    """Times of one worker up to one exchange."""

    key: tuple[int, int, int]
    """Attempt, epoch and step."""
    rank: int
    own_s: Seconds
    exchange_s: float


def make_rounds(workers: Mapping[int, Iterable[AnyEvent]]) -> Iterator[Round]:
    """Yield the rounds of a run.

    Args:
        workers: The events of each worker by rank, oldest first; read once, side by side.
    """
    served = _ServedEpochs()
    ways = [_arrivals(rank, events, served) for rank, events in workers.items()]
    merged = heapq.merge(*ways, key=attrgetter("key", "rank"))
    for _, group in groupby(merged, key=attrgetter("key")):
        present = list(group)
        if len(present) > 1:
            yield _lockstep_round(present)
    yield from served.rounds()


def _lockstep_round(arrivals: list[RoundArrival]) -> Round:
    """Split exchange time: the last to arrive does not wait, so its time is communication."""
    shortest_s = min(one.exchange_s for one in arrivals)
    return Round(
        ranks=[one.rank for one in arrivals],
        own_s=[one.own_s for one in arrivals],
        waited_s=[one.exchange_s - shortest_s for one in arrivals],
        weights=[1.0] * len(arrivals),
    )


def _arrivals(
    rank: int, events: Iterable[AnyEvent], served: _ServedEpochs
) -> Iterator[RoundArrival]:
    """Yield a worker's exchanges with its group; steps with servers go to `served` instead."""
    attempt, epoch, stamp_s = 1, -1, None
    own = [0.0] * len(PHASES)
    for event in events:
        if isinstance(event, Started | Clock):
            if event.attempt != attempt:
                attempt, epoch = event.attempt, -1
            continue
        if not isinstance(event, Step | Stall):
            continue
        if event.wait_s is not None:
            served.add(attempt, rank, event)
            continue
        if event.epoch != epoch:
            # Workers leave the end of an epoch together; what they did there is not compared.
            epoch, stamp_s, own = event.epoch, None, [0.0] * len(PHASES)
        if isinstance(event, Stall):
            if event.what == "settle":
                yield RoundArrival(
                    (attempt, epoch, _AFTER_STEPS), rank, tuple(own), event.duration_s
                )
                own = [0.0] * len(PHASES)
            continue
        own[_INPUT] += event.input_s
        own[_FORWARD] += event.forward_s
        own[_BACKWARD] += event.backward_s
        if stamp_s is not None:
            own[_OTHER] += max(0.0, event.mono_s - stamp_s - event.duration_s)
        stamp_s = event.mono_s
        if event.sent_bytes > 0:
            yield RoundArrival((attempt, epoch, event.step), rank, tuple(own), event.exchange_s)
            own = [0.0] * len(PHASES)
        # Applied after the exchange, so before the next one; local SGD applies before it, which
        # shifts one step in many by a round.
        own[_APPLY] += event.apply_s


class _ServedEpochs:
    """Sums over the steps that workers did with servers, by epoch."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], dict[int, list[float]]] = {}
        self._waited_s: dict[tuple[int, int], dict[int, float]] = {}
        self._steps: dict[tuple[int, int], dict[int, int]] = {}

    def add(self, attempt: int, rank: int, event: Step | Stall) -> None:
        key = attempt, event.epoch
        waited = self._waited_s.setdefault(key, {})
        waited[rank] = waited.get(rank, 0.0) + (event.wait_s or 0.0)
        if isinstance(event, Stall):
            return
        own = self._sums.setdefault(key, {}).setdefault(rank, [0.0] * len(PHASES))
        steps = self._steps.setdefault(key, {})
        steps[rank] = steps.get(rank, 0) + 1
        own[_INPUT] += event.input_s
        own[_FORWARD] += event.forward_s
        own[_BACKWARD] += event.backward_s
        own[_APPLY] += event.apply_s

    def rounds(self) -> Iterator[Round]:
        for key, sums in sorted(self._sums.items()):
            ranks = sorted(sums)
            if len(ranks) < 2:
                continue
            steps = self._steps[key]
            yield Round(
                ranks=ranks,
                own_s=[tuple(one / steps[rank] for one in sums[rank]) for rank in ranks],
                waited_s=[self._waited_s[key][rank] for rank in ranks],
                weights=[float(steps[rank]) for rank in ranks],
            )


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
