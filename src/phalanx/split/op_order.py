"""Order the operations of each worker and predict the time of a step, by list scheduling.

An operation is forward (F) or backward (B) of one part for one micro-batch on one worker. F needs
what the part reads, B its own F and the gradients from all readers; what comes from another worker
arrives latency + bytes / speed after it was computed, and leaves its worker one message at a time.
A free worker runs the operation of highest priority among those it could begin:

gpipe   all F before any B (Huang et al. 2019).
1f1b    B before F; F of micro-batch k waits for B of k - d, where d counts the workers between
        the part and the loss, so that no more than d activations are kept (PipeDream).

All workers' orders come from one feasible schedule, so they cannot deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from phalanx.split.graph import NetworkGraph, Places, RowShare, Transfer, pieces, transfers

Schedule = Literal["gpipe", "1f1b"]
FORWARD, BACKWARD = 0, 1


class SplitOp(NamedTuple):
    """Forward or backward of one part on one micro-batch."""

    direction: int
    micro_batch: int
    part: int


class SplitCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Durations by worker, then by part, for all rows of a batch."""

    forward_s: tuple[tuple[float, ...], ...]
    backward_s: tuple[tuple[float, ...], ...]
    latency_s: float = 1e-4
    bytes_per_s: float = 117e6
    apply_s_per_parameter: float = 1e-9
    """Time of an optimiser's pass over weights, gradients and moments."""

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self.forward_s)

    def message_s(self, num_bytes: float) -> float:
        """Return the time of one message."""
        return self.latency_s + num_bytes / self.bytes_per_s


class SplitTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated schedule of one step."""

    orders: tuple[tuple[SplitOp, ...], ...]
    """Operations of each worker, in order."""
    step_s: float
    busy_s: tuple[float, ...]
    """Compute time of each worker."""

    @property
    def imbalance(self) -> float:
        """The busiest worker's time over the mean of those that hold parts; 1: even."""
        used = [seconds for seconds, order in zip(self.busy_s, self.orders, strict=True) if order]
        mean = sum(used) / len(used)
        return max(used) / mean if mean > 0 else 1.0


def simulate(
    graph: NetworkGraph,
    places: Places,
    costs: SplitCosts,
    *,
    num_rows: int,
    micro_batches: int = 1,
    schedule: Schedule = "1f1b",
) -> SplitTimeline:
    """Simulate one training step."""
    return _Play(graph, places, costs, num_rows, micro_batches, schedule).run()


def depths(graph: NetworkGraph, places: Places) -> tuple[int, ...]:
    """Return for each part the workers on the longest path to the loss, its own included."""
    found = [1] * len(graph.parts)
    for number in reversed(range(len(graph.parts))):
        for reader in graph.readers[number]:
            step = 0 if places[reader] == places[number] else 1
            found[number] = max(found[number], found[reader] + step)
    return tuple(found)


class _Play:
    def __init__(
        self,
        graph: NetworkGraph,
        places: Places,
        costs: SplitCosts,
        num_rows: int,
        micro_batches: int,
        schedule: Schedule,
    ) -> None:
        self._graph, self._places, self._costs = graph, places, costs
        self._num_rows = num_rows
        self._pieces = pieces(num_rows, micro_batches)
        self._schedule = schedule
        self._outgoing: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        self._incoming: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        for one in transfers(graph, places):
            self._outgoing[one.source, one.part].append(one)
            self._incoming[one.target, one.part].append(one)
        self._missing: dict[tuple[int, SplitOp], int] = {}
        self._then: dict[tuple[int, SplitOp], list[tuple[int, SplitOp]]] = defaultdict(list)
        self._depths = depths(graph, places)
        self._list_operations()

    def _list_operations(self) -> None:
        for micro in range(len(self._pieces)):
            for number, part in enumerate(self._graph.parts):
                for worker in self._places[number]:
                    self._add_forward(worker, micro, number)
                    if part.needs_gradient:
                        self._add_backward(worker, micro, number)
        if self._schedule == "gpipe":
            self._hold_back()

    def _add_forward(self, worker: int, micro: int, number: int) -> None:
        op = SplitOp(FORWARD, micro, number)
        before = [
            (holder, SplitOp(FORWARD, micro, source))
            for source in dict.fromkeys(self._graph.parts[number].reads)
            for holder in self._holders(source, number, worker)
        ]
        limit = micro - self._depths[number]
        if self._schedule == "1f1b" and limit >= 0 and self._graph.parts[number].needs_gradient:
            before.append((worker, SplitOp(BACKWARD, limit, number)))
        self._need(worker, op, before)

    def _add_backward(self, worker: int, micro: int, number: int) -> None:
        before = [(worker, SplitOp(FORWARD, micro, number))]
        before += [
            (holder, SplitOp(BACKWARD, micro, reader))
            for reader in self._graph.readers[number]
            for holder in self._holders(reader, number, worker)
        ]
        self._need(worker, SplitOp(BACKWARD, micro, number), before)

    def _holders(self, other: int, number: int, worker: int) -> list[int]:
        """Return the workers whose rows of another part overlap this worker's rows."""
        own = RowShare(self._places[number].index(worker), len(self._places[number]))
        count = len(self._places[other])
        return [
            holder
            for index, holder in enumerate(self._places[other])
            if own.meets(RowShare(index, count))
        ]

    def _hold_back(self) -> None:
        """Delay all backward operations of a worker until its forward ones are done."""
        forward = defaultdict(list)
        for worker, op in self._missing:
            if op.direction == FORWARD:
                forward[worker].append(op)
        for worker, op in list(self._missing):
            if op.direction == BACKWARD:
                for other in forward[worker]:
                    self._missing[worker, op] += 1
                    self._then[worker, other].append((worker, op))

    def _need(self, worker: int, op: SplitOp, before: Sequence[tuple[int, SplitOp]]) -> None:
        # Messages of one part carry the same tag, so both ends must take its micro-batches in turn,
        # even if those of a part with several holders become ready in another order.
        if op.micro_batch > 0:
            before = [*before, (worker, op._replace(micro_batch=op.micro_batch - 1))]
        self._missing[worker, op] = len(before)
        for key in before:
            self._then[key].append((worker, op))

    def run(self) -> SplitTimeline:
        num_workers = self._costs.num_workers
        free, line = [0.0] * num_workers, [0.0] * num_workers
        busy: list[float] = [0.0] * num_workers
        orders: list[list[SplitOp]] = [[] for _ in range(num_workers)]
        open_: list[dict[SplitOp, float]] = [{} for _ in range(num_workers)]
        ready: dict[tuple[int, SplitOp], float] = defaultdict(float)
        for (worker, op), count in self._missing.items():
            if count == 0:
                open_[worker][op] = 0.0
        for _ in range(len(self._missing)):
            begin, worker = min(
                (max(free[worker], min(open_[worker].values())), worker)
                for worker in range(num_workers)
                if open_[worker]
            )
            could = [op for op, at in open_[worker].items() if at <= begin]
            op = min(could, key=self._rank)
            del open_[worker][op]
            took = self._seconds(worker, op)
            end = begin + took
            free[worker], busy[worker] = end, busy[worker] + took
            orders[worker].append(op)
            arrivals = self._send(worker, op, end, line)
            for key in self._then[worker, op]:
                other, later = key
                at = end if other == worker else arrivals.get(other, end)
                ready[key] = max(ready[key], at)
                self._missing[key] -= 1
                if self._missing[key] == 0:
                    open_[other][later] = ready[key]
        step_s = max(free) if free else 0.0
        return SplitTimeline(
            orders=tuple(map(tuple, orders)),
            step_s=self._finish(free, busy, step_s),
            busy_s=tuple(busy),
        )

    def _rank(self, op: SplitOp) -> tuple[int, int, int]:
        if op.direction == BACKWARD:
            return (1 if self._schedule == "gpipe" else 0), op.micro_batch, -op.part
        return (0 if self._schedule == "gpipe" else 1), op.micro_batch, op.part

    def _seconds(self, worker: int, op: SplitOp) -> float:
        table = self._costs.forward_s if op.direction == FORWARD else self._costs.backward_s
        share = self._pieces[op.micro_batch] / self._num_rows
        return table[worker][op.part] * share / len(self._places[op.part])

    def _send(self, worker: int, op: SplitOp, end: float, line: list[float]) -> dict[int, float]:
        """Return when the output of an operation arrives at the workers that need it."""
        arrivals: dict[int, float] = {}
        for target, num_bytes in self._messages(worker, op):
            line[worker] = max(end, line[worker]) + num_bytes / self._costs.bytes_per_s
            arrivals[target] = max(arrivals.get(target, 0.0), line[worker] + self._costs.latency_s)
        return arrivals

    def _messages(self, worker: int, op: SplitOp) -> list[tuple[int, int]]:
        piece = self._pieces[op.micro_batch]
        if op.direction == FORWARD:
            found = [(one.target, one) for one in self._outgoing[worker, op.part]]
        else:
            found = [
                (one.source, one)
                for source in dict.fromkeys(self._graph.parts[op.part].reads)
                for one in self._incoming[worker, source]
                if self._graph.parts[source].needs_gradient
            ]
        return [
            (other, (last - first) * self._graph.parts[one.part].out_bytes)
            for other, one in found
            for first, last in [one.rows(piece)]
            if first < last
        ]

    def _finish(self, free: list[float], busy: list[float], step_s: float) -> float:
        """Add what follows the last gradient: all-reduce between holders, optimiser step."""
        for worker in range(self._costs.num_workers):
            own = [
                part.parameters
                for part, holders in zip(self._graph.parts, self._places, strict=True)
                if worker in holders
            ]
            took = sum(own) * self._costs.apply_s_per_parameter
            busy[worker] += took
            free[worker] += took
        together_s = 0.0
        for part, holders in zip(self._graph.parts, self._places, strict=True):
            if len(holders) > 1:
                size = len(holders)
                sent = 2 * (size - 1) / size * part.parameters * 4
                together_s += 2 * (size - 1) * self._costs.latency_s
                together_s += sent / self._costs.bytes_per_s
        return max(step_s, *free) + together_s if free else step_s
