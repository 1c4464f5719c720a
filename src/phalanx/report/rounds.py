"""Group workers' events into rounds: time before an exchange, and waiting in it; pure.

A round ends with an exchange that all workers of a group take part in: every step under all-reduce,
every few under local SGD, and the end of an epoch. Parameter servers have no such exchange; there
an epoch is one round, made of means per step. Streams, so memory does not grow with the number of
steps. Called by `blame`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

import msgspec

from phalanx.records.events import AnyEvent, Clock, Stall, Started, Step

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
            own[_OTHER] += max(0.0, event.mono_s - stamp_s - _duration_s(event))
        stamp_s = event.mono_s
        if event.sent_bytes > 0:
            yield RoundArrival((attempt, epoch, event.step), rank, tuple(own), event.exchange_s)
            own = [0.0] * len(PHASES)
        # Applied after the exchange, so before the next one; local SGD applies before it, which
        # shifts one step in many by a round.
        own[_APPLY] += event.apply_s


def _duration_s(step: Step) -> float:
    return step.input_s + step.forward_s + step.backward_s + step.exchange_s + step.apply_s


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
